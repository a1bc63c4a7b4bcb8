"""Transformers' generation on optimum-intel models: plain, prompt lookup, assisted.

With transformers 5.5 and optimum-intel 2.2 only plain generation runs. Both ways of assisted decoding end with
`past_key_values.crop(...)`, to take rejected tokens back, and an OpenVINO model, whose cache is inside it, hands back
a tuple that has no such method. They are tried all the same, so that a release in which they work shows.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import torch
from optimum.intel import OVModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from .base import CannotRun, Question, Reply, Setup

DRAFT_LENGTH = 5


class FirstToken(BaseStreamer):
    """Notes when the first token came; the prompt comes before it."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.at: float | None = None

    def put(self, value: torch.Tensor) -> None:
        self.num_calls += 1
        if self.num_calls > 1 and self.at is None:
            self.at = time.perf_counter()

    def end(self) -> None:
        pass


class Optimum:
    """One request at a time, since padded batches would need other prompts."""

    modes = ("plain", "prompt lookup", "assistant")
    biased = ()

    def __init__(self, setup: Setup) -> None:
        config = {"PERFORMANCE_HINT": "LATENCY"} | {name: str(value) for name, value in setup.properties.items()}
        self._target = OVModelForCausalLM.from_pretrained(setup.pair / "target", ov_config=config)
        self._draft = OVModelForCausalLM.from_pretrained(setup.pair / "draft", ov_config=config)
        self._draft.generation_config.num_assistant_tokens = DRAFT_LENGTH
        self.versions = {name: version(name) for name in ("optimum-intel", "transformers", "openvino")}

    def answer(self, mode: str, question: Question) -> Reply:
        if len(question.prompts) > 1:
            raise CannotRun("assisted generation takes one request at a time")
        options: dict[str, Any] = {k: v for k, v in question.options.items() if k != "rng_seed"}
        if mode == "prompt lookup":
            options["prompt_lookup_num_tokens"] = DRAFT_LENGTH
        if mode == "assistant":
            options["assistant_model"] = self._draft
        torch.manual_seed(question.options.get("rng_seed", 0))
        prompt = torch.tensor([question.prompts[0]])
        first = FirstToken()
        began = time.perf_counter()
        try:
            ids = self._target.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                eos_token_id=question.eos,
                pad_token_id=question.eos,
                streamer=first,
                **options,
            )
        except Exception as error:
            raise CannotRun(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
        total_s = time.perf_counter() - began
        answer = tuple(ids[0, prompt.shape[1] :].tolist())
        return Reply((answer,), None if first.at is None else first.at - began, total_s)
