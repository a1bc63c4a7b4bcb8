"""Options: converts the fields of a request to those of the pipeline."""

from __future__ import annotations

import secrets
from typing import Any

from outrider.pipelines import AUTO, LLMPipeline

from .errors import ApiError
from .schema import GenerationRequest

UNCHANGED = (
    "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "acceptance",
    "typical_epsilon", "typical_delta", "rollback_threshold",
)  # fmt: skip
SEEDS = 2**32  # bound of random seeds, which every device accepts
TEMPERATURE = 1.0  # OpenAI's default, if neither the request nor the model sets one


def options_of(
    request: GenerationRequest, pipeline: LLMPipeline, max_new_tokens: int | None, num_logprobs: int | None
) -> dict[str, Any]:
    """The options of `LLMPipeline.streams`, with a random seed if the request has none.

    num_logprobs: how many of the likeliest tokens to report at each position; None reports no log-probabilities.

    Raises ApiError for options that this pipeline does not support.
    """
    defaults = pipeline.get_generation_config()
    temperature = request.temperature
    if temperature is None:
        temperature = defaults.temperature if defaults.do_sample else TEMPERATURE
    num_answers = request.n or 1
    if num_answers > 1 and temperature == 0:
        raise ApiError(400, f"n={num_answers} answers at temperature 0 would all be the same: raise temperature.", "n")
    options = {name: getattr(request, name) for name in UNCHANGED if getattr(request, name) is not None}
    if request.logit_bias:
        options["logit_bias"] = {int(token): bias for token, bias in request.logit_bias.items()}
    if max_new_tokens is not None:
        options["max_new_tokens"] = max_new_tokens
    if request.stop is not None:
        options["stop_strings"] = request.stops
    if num_logprobs is not None:
        options["logprobs"] = max(1, num_logprobs)
    return options | {
        "do_sample": temperature > 0,
        "temperature": temperature,
        "rng_seed": secrets.randbelow(SEEDS) if request.seed is None else request.seed,
        "num_return_sequences": num_answers,
        "mode": mode_of(request, pipeline),
    }


def mode_of(request: GenerationRequest, pipeline: LLMPipeline) -> str:
    """The drafting mode of a request. Raises ApiError if the pair does not support it."""
    mode = request.speculation or (AUTO if AUTO in pipeline.modes else "off")
    if mode not in pipeline.modes:
        raise ApiError(
            400, f"speculation={mode!r} is not possible with this model: choose {_either(pipeline.modes)}.",
            "speculation",
        )  # fmt: skip
    return mode


def _either(values: tuple[str, ...]) -> str:
    return " or ".join(map(repr, values))
