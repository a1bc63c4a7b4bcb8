"""Keep the libraries that Outrider stands on from reporting usage, and from fetching anything unasked."""

from __future__ import annotations

import os
from typing import Any

_TELEMETRY_OFF = {
    "GRADIO_ANALYTICS_ENABLED": "False",  # usage reports, and the check for a newer version
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
_NETWORK_OFF = {"HF_HUB_OFFLINE": "1"}


def keep_private(network: bool = False) -> None:
    """Turn the telemetry of OpenVINO, NNCF, Gradio and Hugging Face off for this process.

    Programs call it before they import those libraries, which read the variables only then; nothing calls it by
    itself. A variable that the user has set stays.
    `network`: whether models may be downloaded from the Hugging Face hub, for a command that says it does so.
    """
    for name, value in (_TELEMETRY_OFF if network else _TELEMETRY_OFF | _NETWORK_OFF).items():
        os.environ.setdefault(name, value)
    take_silence_for_no()


def take_silence_for_no() -> None:
    """Let OpenVINO and NNCF report only for those who have agreed with OpenVINO's `opt_in_out --opt_in`.

    Unless a file in the user's home says no, `import openvino` reports itself and leaves an identifier there, so this
    has to come before it. There is no variable against it, and to write that file would change the setting of the
    user's other programs; so within this process a missing file counts as a no.
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
