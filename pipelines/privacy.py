"""Privacy: keeps Outrider's dependencies from reporting usage, and from downloading anything unasked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TELEMETRY_OFF = {
    "GRADIO_ANALYTICS_ENABLED": "False",  # usage reports, and the check for a newer version
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
_NETWORK_OFF = {"HF_HUB_OFFLINE": "1"}


def keep_private(network: bool = False) -> None:
    """Turn off the telemetry of OpenVINO, NNCF, Gradio and Hugging Face for this process.

    Programs must call it before they import those libraries, which read the variables on import. It is never called
    implicitly, and variables that the user has set are kept.

    network: whether models may be downloaded from the Hugging Face hub.
    """
    for name, value in (_TELEMETRY_OFF if network else _TELEMETRY_OFF | _NETWORK_OFF).items():
        os.environ.setdefault(name, value)
    take_silence_for_no()


@contextmanager
def without_proxies() -> Iterator[None]:
    """Send requests of this process straight to where they go. Gradio, when it is imported and when its server begins,
    asks that server whether it runs, and a proxy does not know this machine."""
    names = ("no_proxy", "NO_PROXY")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "*"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def take_silence_for_no() -> None:
    """Let OpenVINO and NNCF report only for users who have agreed with OpenVINO's `opt_in_out --opt_in`.

    Unless a file in the user's home says no, `import openvino` sends a report and stores an identifier there, so this
    must be called before. No variable prevents it, and writing that file would change the setting for the user's other
    programs. So a missing file counts as a no within this process.
    """
    try:
        from openvino_telemetry.utils import opt_in_checker
    except ImportError:  # a build of OpenVINO without telemetry
        return
    checker: Any = opt_in_checker.OptInChecker
    answers: Any = opt_in_checker.ConsentCheckResult
    asked = checker.check
    if getattr(asked, "silence_is_no", False):
        return

    def check(self: Any, *args: Any, **options: Any) -> Any:
        answer = asked(self, *args, **options)
        return answers.DECLINED if answer is answers.NO_FILE else answer

    check.silence_is_no = True  # type: ignore[attr-defined]
    checker.check = check
