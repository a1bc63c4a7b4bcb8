"""Commands, run in this process where that is enough, which spares the start of another one."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from outrider.app.cli.main import main

OUTRIDER = [sys.executable, "-c", "from outrider.app.cli.main import main; main()"]


def run(*arguments: str | Path, typed: str | bytes = "") -> CompletedProcess[str]:
    """What `outrider ARGUMENTS` writes and ends with."""
    output, errors, code = io.StringIO(), io.StringIO(), 0
    given = typed if isinstance(typed, bytes) else typed.encode()
    stdin = io.TextIOWrapper(io.BytesIO(given), encoding="utf-8")
    command = ["outrider", *map(str, arguments)]
    with redirect_stdout(output), redirect_stderr(errors), patch("sys.argv", command), patch("sys.stdin", stdin):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return CompletedProcess(command, code, output.getvalue(), errors.getvalue())
