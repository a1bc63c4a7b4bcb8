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
from outrider.export.widen import Shape, widen_checkpoint
from outrider.models import pyscout
from outrider.pipelines.model.processor import GROUP_SIZE, limited_properties

# Some processors would take bf16, and some would quantize activations. Folded, layers share code and unpack their
# weights in every pass, which takes the CPU more than twice as long; so the exporter's own check does, and its tests.
STAND_IN = {**NPU_ON_CPU, "NPUW_FOLD": "NO", "INFERENCE_PRECISION_HINT": "f32", GROUP_SIZE: 0}
CHECKPOINTS = Path(pyscout.__file__).parent / "checkpoints"


def make_pair(embedded: Path, folder: Path, compression: Compression) -> Path:
    """The embedded pair with its target compressed anew."""
    shutil.copytree(embedded, folder)
    _compress(CHECKPOINTS / "target", folder / "target", compression)
    return folder


def make_pair_with_draft(npu_pair: Path, folder: Path, compression: Compression) -> Path:
    """The pair with its draft model compressed anew, too. That one is widened, since OpenVINO's code for NPUs takes
    int4 in rows of 64."""
    shutil.copytree(npu_pair, folder)
    wide = folder.with_suffix(".wide")
    widen_checkpoint(CHECKPOINTS / "draft", wide, Shape(128, 3, 2, 1, 192))
    _compress(wide, folder / "draft", compression)
    return folder


def _compress(checkpoint: Path, model: Path, compression: Compression) -> None:
    """Replace the weights in the folder `model` by those of a checkpoint."""
    found, made = find_checkpoint(str(checkpoint), False, print), model.with_suffix(".made")
    convert(found, made, half=False)
    compress(made, compression, found.source)
    for name in ("openvino_model.xml", "openvino_model.bin"):
        shutil.move(made / name, model / name)
    shutil.rmtree(made)


class OnCpu:
    """The target as OpenVINO's CPU plugin alone computes it, with a whole text in one pass."""

    def __init__(self, pair: Path) -> None:
        model = ov.Core().read_model(pair / "target" / "openvino_model.xml")
        properties: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", GROUP_SIZE: 0, **limited_properties()}
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
