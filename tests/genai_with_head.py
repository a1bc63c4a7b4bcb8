"""OpenVINO GenAI with the head of a pair, which decodes greedily, to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino_genai

from outrider.pipelines.model.processor import PRECISION, limited_properties

EXACT = {PRECISION: "f32", "KV_CACHE_PRECISION": "f32"}  # nothing is rounded in the caches


class GenaiWithHead:
    """properties: those of the target; the head computes in f32."""

    def __init__(self, pair: Path, **properties: Any) -> None:
        properties |= limited_properties()
        head = openvino_genai.draft_model(str(pair / "head"), "CPU", **{PRECISION: "f32"} | limited_properties())
        self._pipeline = openvino_genai.LLMPipeline(
            str(pair / "target"),
            "CPU",
            draft_model=head,
            scheduler_config=openvino_genai.SchedulerConfig(),
            **properties,
        )

    def generate(self, prompt: str, **options: Any) -> tuple[str, int]:
        """The text, and how many drafted tokens were accepted."""
        config = openvino_genai.GenerationConfig()
        for name, value in options.items():
            setattr(config, name, value)
        results = self._pipeline.generate([prompt], config)
        return results.texts[0], results.extended_perf_metrics.get_num_accepted_tokens()
