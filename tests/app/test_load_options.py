"""What the commands make of their options for loading a pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.app import load_options
from outrider.app.load_options import LoadOptions, properties_of
from outrider.pipelines import InvalidOption

GIVEN = LoadOptions("NPU", "CPU", None, None, "CPU", False, Path("notes"), {"MAX_PROMPT_LEN": 2048})


def test_every_option_reaches_the_pipeline(monkeypatch):
    opened = []
    monkeypatch.setattr(load_options, "LLMPipeline", lambda *args, **options: opened.append((args, options)))
    LoadOptions("GPU.1", "GPU.0", "genai", "draft", "CPU", False, Path("notes"), {"X": 4}).load(Path("pair"))
    expected = {
        "exact": False, "reference": Path("notes"), "engine": "genai", "speculation": "draft",
        "draft_device": "GPU.0", "fallback": "CPU", "X": 4,
    }  # fmt: skip
    assert opened == [((Path("pair"), "GPU.1"), expected)]


def test_another_device_gets_what_fits_it():
    assert GIVEN.on("NPU") == GIVEN
    assert GIVEN.on("CPU") == LoadOptions("CPU", exact=False, reference=Path("notes"))
    assert GIVEN.on("GPU.1") == LoadOptions("GPU.1", exact=False)
    assert LoadOptions("GPU", "GPU", "outrider", properties={"X": 4}).on("CPU") == LoadOptions("CPU")


def test_properties_are_names_with_values():
    given = ["MAX_PROMPT_LEN=2048", "NPUW_DEVICES=CPU", "EMPTY=", "NEGATIVE=-1", "EXPRESSION=a=b"]
    expected = {"MAX_PROMPT_LEN": 2048, "NPUW_DEVICES": "CPU", "EMPTY": "", "NEGATIVE": -1, "EXPRESSION": "a=b"}
    assert properties_of(given) == expected


@pytest.mark.parametrize("name", ["device", "exact", "cache_tokens", "models_path", "self", "properties"])
def test_options_of_the_pipeline_are_no_properties(name):
    with pytest.raises(InvalidOption, match=f"--property {name}=1 is not a property of OpenVINO"):
        properties_of([f"{name}=1"])


@pytest.mark.parametrize("given", ["MAX_PROMPT_LEN", "=4", ""])
def test_what_is_no_property_is_refused_with_what_to_give(given):
    with pytest.raises(InvalidOption, match=rf"--property {given} is not possible: give NAME=VALUE"):
        properties_of([given])
