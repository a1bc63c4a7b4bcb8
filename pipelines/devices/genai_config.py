"""Translates a GenerationConfig for OpenVINO GenAI, which decodes on GPUs unless Outrider's engine is asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino_genai

from ..config import AUTO, GenerationConfig
from ..errors import InvalidOption, UnsupportedModel, reason_of
from .devices import CPU, OUTRIDER

SEEDS = 2**32  # its random generator ignores higher bits
ASSISTANT_TOKENS = 5  # to draft for each pass, as GenAI does unless told otherwise
NEXT_ANSWER = 0x9E3779B9  # odd, so that no two answers to a prompt share a seed
OWN = f"engine={OUTRIDER!r}, or with device={CPU!r}"  # how to load a pair for Outrider's engine
DRAFTING = ("lookup", "draft")
SPECULATIONS = ("off", *DRAFTING, AUTO)
OWN_CONFIG = "generation_config.json"
REFUSED = {
    "logprobs": "returns tokens only",
    "logit_bias": "has no such option",
    "structured_output_config": "ignores keywords of a schema that it does not know",
    "presence_penalty": "adds it to the scores of tokens that are below 0",
    "frequency_penalty": "adds it to the scores of tokens that are below 0",
}
OF_MODELS = ("presence_penalty", "frequency_penalty")  # those that a model's own configuration can have
UNDRAFTED = "ends answers earlier when it drafts"  # what it does about min_new_tokens
UNDRAFTED_OWN = f"speculation='off', {OWN}"  # how to load a pair for that option


def check_own(folder: Path, device: str, speculation: str) -> None:
    """Raises UnsupportedModel if a model's own configuration has what only Outrider's engine can do, or only plain
    decoding: every request would be refused for an option that nobody gave."""
    own = _own(folder)
    remedies = {name: (REFUSED[name], OWN) for name in OF_MODELS}
    if speculation in DRAFTING:
        remedies["min_new_tokens"] = (UNDRAFTED, UNDRAFTED_OWN)
    for name, (reason, remedy) in remedies.items():
        if value := own.get(name):
            raise UnsupportedModel(
                f"{folder / OWN_CONFIG} has {name}={value!r}, which is not possible on {device}, where OpenVINO GenAI "
                f"{reason}: load the pair with {remedy}."
            )


def lets_draft(folder: Path) -> bool:
    """Whether GenAI can draft without disregarding a model's own configuration."""
    return not _own(folder).get("min_new_tokens")


def _own(folder: Path) -> dict[str, Any]:
    """A model's own configuration. The file was read and checked when the pipeline was opened."""
    path = folder / OWN_CONFIG
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def check_with_genai(config: GenerationConfig, device: str, modes: Sequence[str]) -> None:
    """Raises InvalidOption for what only Outrider's engine can do.

    modes: the pipeline's modes, of which the first says how it drafts.
    """
    if config.mode not in modes:
        remedy = OWN if config.mode not in SPECULATIONS else f"speculation={config.mode!r}, or with engine={OUTRIDER!r}"
        raise InvalidOption(
            f"mode={config.mode!r} is not possible on {device}, where OpenVINO GenAI decodes and the pair was loaded "
            f"for {modes[0]!r}: leave it out, or load the pair with {remedy}."
        )
    for name, reason in REFUSED.items():
        if value := getattr(config, name):
            raise InvalidOption(
                f"{name}={value!r} is not possible on {device}, where OpenVINO GenAI {reason}: leave it out, or load "
                f"the pair with {OWN}."
            )


def check_acceptance(config: GenerationConfig, device: str) -> None:
    """Raises InvalidOption for acceptance rules other than GenAI's own."""
    if config.lossy:
        raise InvalidOption(
            f"acceptance={config.acceptance!r} is not possible on {device}, where OpenVINO GenAI decides what is "
            f"accepted: leave it out, or load the pair with {OWN}."
        )


def to_genai(
    config: GenerationConfig,
    max_new_tokens: int,
    answer: int = 0,
    speculation: str = "off",
    vocabulary_size: float = math.inf,
) -> openvino_genai.GenerationConfig:
    """GenAI's configuration for a request; `answer` counts the answers to one prompt, each of which has its own seed.

    Stop tokens are included, so that the device stops when the answer does. Stop strings and chat templates are not:
    `TextStream` and `encode_prompt` handle them on every device.

    speculation: how the pipeline drafts: "off", "lookup" or "draft".
    vocabulary_size: ids from it on, which end no answer, are left out: GenAI would write beyond its logits for them.

    Raises InvalidOption for a value that GenAI does not accept, and for amounts that have no effect.
    """
    if config.rng_seed >= SEEDS:
        raise InvalidOption(f"rng_seed={config.rng_seed} is too large for this device: give one below {SEEDS}.")
    if speculation == "draft" and not config.greedy:
        raise InvalidOption(
            "Sampling with a draft model is not possible here, since OpenVINO GenAI then samples from another "
            "distribution (its issue 4190): ask for temperature 0 (do_sample=False), or load the pair with "
            "speculation='lookup'."
        )
    _check_amounts(config, speculation)
    ends = {token for token in config.stop_ids if token < vocabulary_size}
    if config.min_new_tokens and ends and speculation in DRAFTING:
        raise InvalidOption(
            f"min_new_tokens={config.min_new_tokens} is not possible here, where OpenVINO GenAI {UNDRAFTED}: leave it "
            f"out, or load the pair with {UNDRAFTED_OWN}."
        )
    options = {
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min(config.min_new_tokens, max_new_tokens),
        "ignore_eos": not ends,
        "stop_token_ids": ends,
        "do_sample": not config.greedy,
        "rng_seed": (config.rng_seed + answer * NEXT_ANSWER) % SEEDS,
        "repetition_penalty": config.repetition_penalty,
    }
    if not config.greedy:
        options |= {"temperature": config.temperature, "top_p": config.top_p, "min_p": config.min_p}
        if config.top_k is not None:
            options["top_k"] = config.top_k
    if speculation != "off":
        options["num_assistant_tokens"] = config.num_assistant_tokens or ASSISTANT_TOKENS
    if speculation == "lookup":
        options["max_ngram_size"] = config.max_ngram_size
    if not ends:  # else GenAI would suppress the model's own end token
        options["min_new_tokens"] = 0
    genai = openvino_genai.GenerationConfig()
    try:
        genai.update_generation_config(**options)
        genai.validate()
    except RuntimeError as error:  # for numbers that are not possible once it has rounded them to 32 bits
        raise InvalidOption(
            f"OpenVINO GenAI refuses the request's options ({reason_of(error)}): give less extreme values, or load the "
            f"pair with {OWN}."
        ) from error
    if ends:  # else GenAI would also stop at the model's own end token
        genai.set_eos_token_id(min(ends))
    return genai


def _check_amounts(config: GenerationConfig, speculation: str) -> None:
    """Raises InvalidOption for an amount that has no effect with this way of drafting."""
    default, takes = GenerationConfig(), {"num_assistant_tokens": ("lookup", "draft"), "max_ngram_size": ("lookup",)}
    for name, ways in takes.items():
        value = getattr(config, name)
        if speculation not in ways and value != getattr(default, name):
            raise InvalidOption(
                f"{name}={value!r} has no effect here, where OpenVINO GenAI decodes and the pair was loaded for "
                f"{speculation!r}: leave it out, or load the pair with "
                f"{' or '.join(f'speculation={way!r}' for way in ways)}."
            )
