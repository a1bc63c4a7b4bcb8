"""Translates a GenerationConfig for OpenVINO GenAI, which decodes on devices other than the CPU."""

from __future__ import annotations

import openvino_genai

from ..config import GenerationConfig
from ..errors import InvalidOption

SEEDS = 2**32  # its random generator ignores higher bits
ASSISTANT_TOKENS = 5  # to draft for each pass, as GenAI does unless told otherwise
NEXT_ANSWER = 0x9E3779B9  # odd, so that no two answers to a prompt share a seed
PENALTY = 2.0


def to_genai(
    config: GenerationConfig, max_new_tokens: int, answer: int = 0, speculation: str = "off"
) -> openvino_genai.GenerationConfig:
    """GenAI's configuration for a request; `answer` counts the answers to one prompt, each of which has its own seed.

    Stop tokens are included, so that the device stops when the answer does. Stop strings and chat templates are not:
    `TextStream` and `encode_prompt` handle them on every device.

    speculation: how the pipeline drafts: "off", "lookup" or "draft".

    Raises InvalidOption for a value that GenAI does not accept.
    """
    if config.rng_seed >= SEEDS:
        raise InvalidOption(f"rng_seed={config.rng_seed} is too large for this device: give one below {SEEDS}.")
    for name in ("presence_penalty", "frequency_penalty"):
        if abs(getattr(config, name)) > PENALTY:
            raise InvalidOption(
                f"{name}={getattr(config, name)!r} is too much for this device: give one from {-PENALTY} to {PENALTY}."
            )
    if speculation == "draft" and not config.greedy:
        raise InvalidOption(
            "Sampling with a draft model is not possible here, since OpenVINO GenAI then samples from another "
            "distribution (its issue 4190): ask for temperature 0 (do_sample=False), or load the pair with "
            "speculation='lookup'."
        )
    options = {
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min(config.min_new_tokens, max_new_tokens),
        "ignore_eos": not config.stop_ids,
        "stop_token_ids": set(config.stop_ids),
        "do_sample": not config.greedy,
        "rng_seed": (config.rng_seed + answer * NEXT_ANSWER) % SEEDS,
        "repetition_penalty": config.repetition_penalty,
        "presence_penalty": config.presence_penalty,
        "frequency_penalty": config.frequency_penalty,
    }
    if not config.greedy:
        options |= {"temperature": config.temperature, "top_p": config.top_p, "min_p": config.min_p}
        if config.top_k is not None:
            options["top_k"] = config.top_k
    if speculation != "off":
        options["num_assistant_tokens"] = config.num_assistant_tokens or ASSISTANT_TOKENS
    if speculation == "lookup":
        options["max_ngram_size"] = config.max_ngram_size
    if not config.stop_ids:  # else GenAI would suppress the model's own end token
        options["min_new_tokens"] = 0
    genai = openvino_genai.GenerationConfig()
    genai.update_generation_config(**options)
    if config.stop_ids:  # else GenAI would also stop at the model's own end token
        genai.set_eos_token_id(min(config.stop_ids))
    return genai
