"""What an NPU, or OpenVINO for it, cannot do is refused with what to do instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from outrider.pipelines import InvalidOption, LLMPipeline, UnsupportedDevice, UnsupportedModel
from outrider.pipelines.devices import devices
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
