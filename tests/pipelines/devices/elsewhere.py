"""Devices that this machine lacks: all of the way there is real, except that OpenVINO GenAI computes on the CPU.

What stands in for a GPU runs paged attention, as GenAI does on GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openvino_genai
import pytest

from outrider.pipelines import LLMPipeline
from outrider.pipelines.devices import devices
from outrider.pipelines.model.processor import limited_properties

GENAI, GENAI_DRAFT = openvino_genai.LLMPipeline, openvino_genai.draft_model


class Faulty:
    """A GenAI pipeline that breaks when told to: after `fails_after` tokens of a request, or ending early there."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self.fails_after: int | None = None
        self.error: Exception | None = RuntimeError("Exception from src/plugin.cpp:7:\nThe device was unplugged.\n")

    def generate(self, prompt: Any, config: Any, streamer: Any = None) -> Any:
        if self.fails_after is not None:
            config.max_new_tokens = config.min_new_tokens = self.fails_after
        result = self._pipeline.generate(prompt, config, *([] if streamer is None else [streamer]))
        if self.fails_after is not None and self.error is not None:
            raise self.error
        return result


class Elsewhere:
    """Opens pipelines on a stand-in, for plain decoding unless told otherwise; `properties` and `faulty` are those of
    the last one, `loaded` the properties of all, and `drafts` the folders, devices and properties of draft models."""

    def __init__(self, pair: Path, device: str) -> None:
        self.pair = pair
        self.device = device
        self.properties: dict[str, Any] = {}
        self.loaded: list[dict[str, Any]] = []
        self.drafts: list[tuple[Path, str, dict[str, Any]]] = []
        self.faulty: Faulty

    @contextmanager
    def present(self) -> Iterator[None]:
        """Meanwhile the device seems to be there."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(openvino_genai, "draft_model", self._draft)
            patch.setattr(devices, "device_names", lambda: ("CPU", "GPU.0", "GPU.1", "NPU"))
            patch.setattr(openvino_genai, "LLMPipeline", self._load)
            yield

    def open(self, **options: Any) -> LLMPipeline:
        with self.present():
            return LLMPipeline(self.pair, self.device, **{"speculation": "off", **options})

    def reference(self) -> Any:
        """GenAI's own pipeline, without Outrider. It forgets each prompt, or its text would depend on those before."""
        properties: dict[str, Any] = dict(limited_properties())
        properties["scheduler_config"] = openvino_genai.SchedulerConfig()
        properties["scheduler_config"].max_num_batched_tokens = 4096
        return GENAI(self.pair / "target", "CPU", **properties)

    def _draft(self, folder: Path, device: str, **properties: Any) -> Any:
        self.drafts.append((folder, device, properties))
        return GENAI_DRAFT(folder, "CPU", **properties | limited_properties())

    def _load(self, model: Path, device: str, **properties: Any) -> Faulty:
        assert device == self.device
        self.properties = properties
        self.loaded.append(properties)
        self.faulty = Faulty(GENAI(model, "CPU", **limited_properties(), **properties))
        return self.faulty
