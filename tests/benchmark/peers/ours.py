"""Outrider itself, as a peer among peers."""

from __future__ import annotations

import time
from importlib.metadata import version

from outrider.pipelines import LLMPipeline

from .base import Question, Reply, Setup


class Ours:
    """All modes of a pipeline that keeps the promise of the same tokens, and "auto" of one that does not."""

    biased = ()

    def __init__(self, setup: Setup) -> None:
        self._exact = LLMPipeline(setup.pair, exact=True, **setup.properties)
        self._inexact = LLMPipeline(setup.pair, exact=False, **setup.properties)
        for pipeline in (self._exact, self._inexact):
            pipeline.warm_up()
        self.modes = (*self._exact.modes, "auto, inexact", "off, inexact")
        self.versions = {"outrider": version("outrider")}

    def answer(self, mode: str, question: Question) -> Reply:
        mode, _, inexact = mode.partition(", ")
        pipeline = self._inexact if inexact else self._exact
        pipeline.speculation.forget_prompts()
        prompts = question.task.prompts
        inputs = list(prompts) if len(prompts) > 1 else prompts[0] if isinstance(prompts[0], str) else list(prompts[0])
        began = time.perf_counter()
        generations = pipeline.generate(inputs, **{**question.options, "mode": mode}).generations
        total_s = time.perf_counter() - began
        ttft_s = generations[0].stats.ttft_s if len(generations) == 1 else None
        return Reply(tuple(generation.token_ids for generation in generations), ttft_s, total_s)
