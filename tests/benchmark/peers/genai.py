"""OpenVINO GenAI: plain, prompt lookup, draft model."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from outrider.pipelines import Pair

from .base import Question, Reply, Setup

CACHE_GB = 1
DRAFT_LENGTH, MAX_NGRAM = 5, 3


class FirstToken(genai.StreamerBase):
    """Notes when the first token came."""

    def __init__(self) -> None:
        super().__init__()
        self.at: float | None = None

    def write(self, token: Any) -> Any:
        self.at = self.at or time.perf_counter()
        return genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


class GenAI:
    """Continuous batching, which its LLMPipeline uses too, with a pipeline for each mode.

    Prefix caching is off, since each prompt is asked in every mode.
    """

    modes = ("plain", "prompt lookup", "draft model")
    biased = ("draft model",)  # its issue 4190; `python -m tests.benchmark.sampled` shows it

    def __init__(self, setup: Setup) -> None:
        target = setup.pair / "target"
        properties = {**Pair.open(setup.pair).properties, **setup.properties}  # the pair's make it fastest, as for us
        special: dict[str, dict[str, Any]] = {
            "plain": {},
            "prompt lookup": {"prompt_lookup": True},
            "draft model": {"draft_model": genai.draft_model(setup.pair / "draft", "CPU", **setup.properties)},
        }
        tokenizer = genai.Tokenizer(target)
        self._pipelines = {
            mode: genai.ContinuousBatchingPipeline(
                target, tokenizer, _scheduler(), "CPU", **properties, **special[mode]
            )
            for mode in self.modes
        }
        self.versions = {name: version(name) for name in ("openvino", "openvino-genai")}

    def answer(self, mode: str, question: Question) -> Reply:
        prompts = [ov.Tensor(np.array([prompt], np.int64)) for prompt in question.prompts]
        configs = [_config(mode, question) for _ in prompts]
        first = FirstToken() if len(prompts) == 1 else None
        began = time.perf_counter()
        results = self._pipelines[mode].generate(prompts, configs, first)
        total_s = time.perf_counter() - began
        ids = tuple(tuple(result.m_generation_ids[0]) for result in results)
        return Reply(ids, None if first is None or first.at is None else first.at - began, total_s)


def _scheduler() -> genai.SchedulerConfig:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.enable_prefix_caching = False
    return scheduler


def _config(mode: str, question: Question) -> genai.GenerationConfig:
    config = genai.GenerationConfig()
    for name, value in question.options.items():
        setattr(config, name, value)
    config.eos_token_id = question.eos
    config.stop_token_ids = {question.eos}
    if mode != "plain":
        config.num_assistant_tokens = DRAFT_LENGTH
    if mode == "prompt lookup":
        config.max_ngram_size = MAX_NGRAM
    return config
