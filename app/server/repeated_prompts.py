"""Repeated prompts: a prompt that occurs several times in one request gets different sampled answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from outrider.pipelines import LLMPipeline, Stream
from outrider.pipelines.text.prompt import Inputs


def streams_of(pipeline: LLMPipeline, inputs: Inputs, options: Mapping[str, Any]) -> list[Stream]:
    """Begin the answers to a request, in the order of `LLMPipeline.streams`.

    Further occurrences of a prompt get the answers that a larger `num_return_sequences` would add to those of the
    first, since the same answers again would be of no use.
    """
    if not isinstance(inputs, list) or not options["do_sample"]:
        return pipeline.streams(inputs, **options)
    prompts = [tuple(prompt) if isinstance(prompt, list) else prompt for prompt in inputs]
    num_each = options["num_return_sequences"]
    with ExitStack() as opened:  # if a prompt is refused, the streams of those before it are closed
        answers = {}
        for prompt, count in Counter(prompts).items():
            streams = pipeline.streams([prompt], **{**options, "num_return_sequences": count * num_each})
            answers[prompt] = iter([opened.enter_context(stream) for stream in streams])
        opened.pop_all()
    return [next(answers[prompt]) for prompt in prompts for _ in range(num_each)]
