"""A user's machine, with a hub that it can reach."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tests.hub import Hub, taken_over

from ..commands import OUTRIDER, run

NAME, TARGET, DRAFT = "qwen3-8b", "OpenVINO/Qwen3-8B-int4-ov", "OpenVINO/Qwen3-0.6B-int8-ov"


@dataclass
class Machine:
    """A user's folders, and the hub that they can reach."""

    hub: Hub
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.hub.settings(self.folder / "hub"), "XDG_DATA_HOME": str(self.folder / "data"), **self.settings}

    @property
    def pairs(self) -> Path:
        return self.folder / "data" / "outrider" / "pairs"

    def run(self, *arguments: str, typed: str = "") -> CompletedProcess[str]:
        """Run a command in this process."""
        with taken_over(self.environment):
            return run(*arguments, typed=typed)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command in a process of its own."""
        return subprocess.Popen(
            [*OUTRIDER, *arguments], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def listed(self, name: str = NAME) -> dict[str, Any]:
        """What the list says of a pair."""
        done = self.run("models", "list", "--json")
        assert done.returncode == 0, done.stderr
        return next(pair for pair in json.loads(done.stdout)["pairs"] if pair["name"] == name)
