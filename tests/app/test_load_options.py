"""What the commands make of their options for loading a pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outrider.app import load_options
from outrider.app.load_options import LoadOptions, properties_of
from outrider.pipelines import InvalidOption

ON_NPU = LoadOptions("NPU", "NPU", properties={"MAX_PROMPT_LEN": 64, "NPUW_X": 1})
GIVEN = LoadOptions("NPU", "CPU", None, None, "CPU", False, Path("notes"), {"MAX_PROMPT_LEN": 2048})


def test_every_option_reaches_the_pipeline(monkeypatch):
    opened = []
    monkeypatch.setattr(load_options, "LLMPipeline", lambda *args, **options: opened.append((args, options)))
    given = LoadOptions("GPU.1", "GPU.0", "genai", "draft", "CPU", False, Path("notes"), {"X": 4}, Path("head"), 64)
    given.load(Path("pair"))
    expected = {
        "exact": False, "reference": Path("notes"), "engine": "genai", "speculation": "draft",
        "draft_device": "GPU.0", "fallback": "CPU", "X": 4, "head": Path("head"), "cache_tokens": 64,
    }  # fmt: skip
    assert opened == [((Path("pair"), "GPU.1"), expected)]


@pytest.mark.parametrize(
    ("given", "device", "expected", "left_out"),
    [
        (GIVEN, "NPU", GIVEN, None),
        (
            GIVEN,
            "CPU",
            LoadOptions("CPU", exact=False, reference=Path("notes")),
            "on CPU without fallback and properties, which were given for NPU",
        ),
        (GIVEN, "GPU.1", LoadOptions("GPU.1", exact=False, fallback="CPU"), "without reference and properties"),
        (LoadOptions("GPU", "GPU", "outrider"), "CPU", LoadOptions("CPU", "GPU"), "without engine, which was given"),
        (LoadOptions("GPU", "GPU", "outrider"), "GPU.1", LoadOptions("GPU.1", "GPU", "outrider"), None),
        (
            LoadOptions("GPU", "GPU", "genai", "draft", "CPU"),
            "GPU.1",
            LoadOptions("GPU.1", "GPU", "genai", "draft", "CPU"),
            None,
        ),
        (LoadOptions("CPU", "GPU"), "GPU.1", LoadOptions("GPU.1"), "without draft_device"),
        (LoadOptions(head=Path("head")), "NPU", LoadOptions("NPU"), "without head, which was given"),
        (LoadOptions("CPU", "GPU"), "NPU", LoadOptions("NPU", "GPU"), None),
        (LoadOptions(cache_tokens=64), "NPU", LoadOptions("NPU"), "without cache_tokens, which was given"),
        (LoadOptions(cache_tokens=64), "GPU", LoadOptions("GPU", cache_tokens=64), None),
        (ON_NPU, "CPU", LoadOptions("CPU", "NPU", properties={"NPUW_X": 1}), "without properties"),
        (ON_NPU, "GPU", LoadOptions("GPU"), "without draft_device and properties"),
    ],
    ids=str,
)
def test_another_device_gets_what_fits_it_and_what_does_not_is_said(given, device, expected, left_out, caplog):
    assert given.on(device) == expected
    assert bool(caplog.records) == (left_out is not None)
    assert (left_out or "") in caplog.text


def test_an_npus_properties_stay_where_one_of_the_models_is_there():
    given = LoadOptions("CPU", "NPU", properties={"NPUW_X": 1, "Y": 2})
    assert given.drafting_on("CPU") == LoadOptions("CPU", "CPU", properties={"Y": 2})
    assert given.drafting_on("NPU") == given
    assert ON_NPU.drafting_on("CPU") == replace(ON_NPU, draft_device="CPU")


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
