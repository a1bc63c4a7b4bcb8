"""What an NPU, or OpenVINO for it, cannot do is refused with what to do instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from outrider.pipelines import InvalidOption, LLMPipeline, UnsupportedDevice, UnsupportedModel
from outrider.pipelines.devices import devices, npu_model
from outrider.pipelines.devices.npu_model import require_symmetric_int4
from tests.on_npu import STAND_IN


@pytest.mark.parametrize(
    ("types", "message"),
    [(["i4", "i8"], None), (["i8"], "type i8"), (["u4", "i8"], "asymmetric int4"), (["i4", "u4"], "asymmetric int4")],
    ids=str,
)
def test_weights_other_than_symmetric_int4_are_refused(types, message):
    weights = [ops.constant(np.ones((4, 4), np.int8), getattr(ov.Type, each)) for each in types]
    model = ov.Model([ops.convert(each, "f32") for each in weights], [])
    if message is None:
        require_symmetric_int4(model, Path("folder"))
    else:
        with pytest.raises(
            UnsupportedModel,
            match=rf"folder has weights of .*{message}.* symmetric int4.*--for npu",
        ):
            require_symmetric_int4(model, Path("folder"))


def test_a_pair_that_was_not_made_for_an_npu_is_refused(embedded_pair):
    with pytest.raises(UnsupportedModel, match=r"target has weights of .*--for npu"):
        LLMPipeline(embedded_pair, "NPU", **STAND_IN)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MAX_PROMPT_LEN", "MIN_RESPONSE_LEN", "NPUW_LLM_MAX_GENERATION_TOKEN_LEN"])
@pytest.mark.parametrize("value", [0, "64", True, 1.5], ids=repr)
def test_lengths_that_are_none_are_refused(npu_pair, name, value):
    with pytest.raises(InvalidOption, match=f"{name}={value!r}.*whole number"):
        LLMPipeline(npu_pair, "NPU", **STAND_IN, **{name: value})


@pytest.mark.parametrize(("prompt", "response", "rows"), [(4, 5, 8), (1, 1, 1), (8, 9, 9)])
def test_lengths_without_room_for_a_pass_after_a_prompt_are_refused(npu_pair, prompt, response, rows):
    lengths = {"MAX_PROMPT_LEN": prompt, "MIN_RESPONSE_LEN": response, "NPUW_LLM_MAX_GENERATION_TOKEN_LEN": rows}
    filled = 1 if rows == 1 else -(-rows // 8) * 8
    with pytest.raises(InvalidOption, match=f"{prompt + response} tokens .* {filled} rows: give at least {filled + 2}"):
        LLMPipeline(npu_pair, "NPU", **STAND_IN, **lengths)


@pytest.mark.slow
def test_an_npu_that_is_not_there_is_refused_unless_another_device_computes(npu_pair, monkeypatch):
    monkeypatch.setattr(devices, "device_names", lambda: ("CPU",))
    with pytest.raises(UnsupportedDevice, match="no device 'NPU'"):
        LLMPipeline(npu_pair, "NPU")
    with pytest.raises(UnsupportedDevice, match="no device 'NPU'"):
        LLMPipeline(npu_pair, "NPU", NPU_USE_NPUW="YES")
    with pytest.raises(UnsupportedDevice, match="no device 'NPU'"):
        LLMPipeline(npu_pair, "NPU", **{**STAND_IN, "NPUW_DEVICES": "NPU,CPU"})
    with pytest.raises(InvalidOption, match=r"cache_tokens=64 .*MAX_PROMPT_LEN"):
        LLMPipeline(npu_pair, "NPU", cache_tokens=64, **STAND_IN)


def test_a_property_that_openvino_does_not_know_is_said(npu_pair):
    with pytest.raises(UnsupportedDevice, match=r"could not compile .* for an NPU \(.*HORSES"):
        LLMPipeline(npu_pair, "NPU", NPUW_HORSES="4", **STAND_IN)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("HORSES", "has no effect on an NPU: leave it out"),
        ("MAX_PROMPT_LENGTH", "has no effect on an NPU: give MAX_PROMPT_LEN, or leave it out"),
        ("max_prompt_len", "has no effect on an NPU: give MAX_PROMPT_LEN, or leave it out"),
        ("PREFILL_HINT", "has no effect on an NPU: give NPUW_LLM_PREFILL_HINT, or"),
        ("GENERATE_HINT", "has no effect on an NPU: give NPUW_LLM_GENERATE_HINT, or"),
        ("NPUW_LLM_MAX_PROMPT_LEN", "is not possible: give MAX_PROMPT_LEN in its place"),
        ("NPUW_LLM_MIN_RESPONSE_LEN", "is not possible: give MIN_RESPONSE_LEN in its place"),
        ("NPUW_LLM_SEQ_LEN_DIM", "is not possible: it has to be 2, so leave it out"),
    ],
)
def test_a_property_that_would_be_dropped_or_contradict_ours_is_refused(npu_pair, name, remedy):
    with pytest.raises(InvalidOption, match=f"{name}=4 {remedy}"):
        LLMPipeline(npu_pair, "NPU", **STAND_IN, **{name: 4})


@pytest.mark.parametrize("place", [{}, STAND_IN, {"NPUW_DEVICES": "ZEBRA"}], ids=["an NPU", "the CPU", "none"])
def test_properties_that_have_an_effect_are_not_refused(place):
    """That of a processor has one on the draft model."""
    npu_model._check({**place, "CACHE_DIR": "x", "INFERENCE_NUM_THREADS": 2, "NPUW_LLM_PREFILL_HINT": "STATIC"})


def test_rows_of_a_pass_on_an_npu_are_refused_where_only_the_draft_model_is_there(embedded_pair):
    with pytest.raises(InvalidOption, match=r"for targets on an NPU; this one is on CPU: leave it out"):
        LLMPipeline(embedded_pair, draft_device="NPU", NPUW_LLM_MAX_GENERATION_TOKEN_LEN=8, **STAND_IN)
