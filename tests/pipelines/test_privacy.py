"""The telemetry of the libraries is off unless the user has turned it on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ASK_OPENVINO = """
from outrider.pipelines import LLMPipeline
import openvino
from openvino_telemetry import Telemetry
print(Telemetry().consent)
"""
ASK_NNCF = """
import outrider.export
from nncf.telemetry import telemetry
print(telemetry._impl.consent)
"""
ASK_OTHERS = """
from outrider.pipelines.privacy import keep_private
keep_private(network={network})
from gradio.analytics import analytics_enabled
from huggingface_hub import constants
print(analytics_enabled(), constants.HF_HUB_DISABLE_TELEMETRY, constants.HF_HUB_OFFLINE)
"""
VARIABLES = ("GRADIO_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "CI")


def told(program: str, home: Path, **variables: str) -> str:
    """What a program prints in a fresh home, with nothing set but `variables`."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"HOME": str(home), "LOCALAPPDATA": str(home), **variables}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[-2]


@pytest.mark.parametrize("program", [ASK_OPENVINO, ASK_NNCF], ids=["openvino", "nncf"])
def test_openvino_and_nncf_report_nothing_without_a_consent_and_leave_the_home_alone(tmp_path, program) -> None:
    assert told(program, tmp_path) == "False"
    assert list(tmp_path.rglob("*openvino*")) == []  # no identifier was made


@pytest.mark.skipif(os.name == "nt", reason="the consent file lies elsewhere on Windows")
def test_a_consent_given_to_openvino_stands(tmp_path: Path) -> None:
    (tmp_path / "intel").mkdir()
    (tmp_path / "intel" / "openvino_telemetry").write_text("1")
    assert told(ASK_OPENVINO, tmp_path) == "True"


def test_gradio_and_hugging_face_report_and_fetch_nothing(tmp_path: Path) -> None:
    assert told(ASK_OTHERS.format(network=False), tmp_path) == "False True True"


def test_a_command_that_downloads_may_use_the_network_and_still_reports_nothing(tmp_path: Path) -> None:
    assert told(ASK_OTHERS.format(network=True), tmp_path) == "False True False"


def test_what_the_user_has_set_stays(tmp_path: Path) -> None:
    chosen = {"GRADIO_ANALYTICS_ENABLED": "True", "HF_HUB_DISABLE_TELEMETRY": "0", "HF_HUB_OFFLINE": "0"}
    assert told(ASK_OTHERS.format(network=False), tmp_path, **chosen) == "True False False"
