"""OpenVINO's own code for NPUs, which computes on the CPU here, and a pair as an NPU wants it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from outrider.export.checkpoint import find_checkpoint
from outrider.export.compression import Compression
from outrider.export.convert import compress, convert
from outrider.export.device_check import NPU_ON_CPU
from outrider.models import pyscout
from outrider.pipelines.model.processor import limited_properties

STAND_IN = NPU_ON_CPU


def make_pair(embedded: Path, folder: Path, compression: Compression) -> Path:
    """The embedded pair with its target compressed anew."""
    shutil.copytree(embedded, folder)
    checkpoint = find_checkpoint(str(Path(pyscout.__file__).parent / "checkpoints" / "target"), False, print)
    made = folder.with_suffix(".made")
    convert(checkpoint, made, half=False)
    compress(made, compression, checkpoint.source)
    for name in ("openvino_model.xml", "openvino_model.bin"):
        shutil.move(made / name, folder / "target" / name)
    return folder


class OnCpu:
    """The target as OpenVINO's CPU plugin alone computes it, with a whole text in one pass."""

    def __init__(self, pair: Path) -> None:
        model = ov.Core().read_model(pair / "target" / "openvino_model.xml")
        properties: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", **limited_properties()}
        self._request = ov.Core().compile_model(model, "CPU", properties).create_infer_request()

    def logits(self, tokens: list[int]) -> np.ndarray:
        """float32 [tokens, vocabulary]"""
        self._request.reset_state()
        given = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, len(tokens)), np.int64)}
        given["position_ids"] = np.arange(len(tokens))[np.newaxis]
        given["beam_idx"] = np.zeros(1, np.int32)
        self._request.infer(given)
        return self._request.get_tensor("logits").data[0].copy()

    def shortfall(self, prompt: list[int], answer: Sequence[int]) -> float:
        """How far the logits of the answer's tokens are below the highest of their rows, at most.

        0 for greedy text, and a few tenths where devices round differently and two tokens are as good as each other."""
        assert answer
        logits = self.logits([*prompt, *answer])[len(prompt) - 1 : -1]
        return float((logits.max(axis=1) - logits[np.arange(len(answer)), list(answer)]).max())
