"""Capabilities: what can be asked of a loaded pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .config import AUTO, GenerationConfig
from .devices.genai_config import check_acceptance, check_with_genai
from .errors import InvalidOption, PromptTooLong
from .text.tokenizer import Tokenizer

MISSING = {  # by mode
    "head": "a head on a target that runs on the CPU", "chained": "a draft model or a head",
    "skip": "layers that drafts skip, on the CPU", "exit": "an early exit, on the CPU",
}  # fmt: skip
GIVEN = {"head": "--head", "skip": "--skip-layers", "exit": "--exit-layer"}  # to the export, by mode


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What can be asked of a pair on its device.

    path: the pair's folder, which may be gone by now: what is loaded goes on without it.
    modes: the modes that it has.
    plans: whether our own engine decodes; else OpenVINO GenAI does.
    max_context: the most tokens of prompt and answer that the model was made for.
    cache_tokens: the most tokens of prompt and answer that the cache has room for.
    own: the configuration of the model itself.
    """

    path: Path
    tokenizer: Tokenizer
    device: str
    modes: Sequence[str]
    plans: bool
    max_context: int
    cache_tokens: int
    own: GenerationConfig

    def checked(self, config: GenerationConfig) -> GenerationConfig:
        """A configuration that can be served, with mode "off" for "auto" where nothing can draft. Raises
        InvalidOption."""
        if not self.plans:
            check_acceptance(config, self.device)  # before the lack of drafters is given as the reason
        if config.mode == AUTO and AUTO not in self.modes:
            config = config.updated({"mode": "off"})
        if not self.plans:
            check_with_genai(config, self.device, self.modes)
        if config.mode not in self.modes:
            missing, option = MISSING.get(config.mode, "a draft model"), GIVEN.get(config.mode, "--draft")
            raise InvalidOption(
                f"mode={config.mode!r} needs {missing}, and {self.path} has none: choose one of "
                f"{', '.join(map(repr, self.modes))}, or export the pair with {option}."
            )
        own = self.own.eos_token_ids  # can lie outside the vocabulary; OpenVINO GenAI lists them as stop tokens too
        given = {
            "logit_bias": dict(config.logit_bias).keys(),
            "stop_token_ids": config.stop_token_ids - own,
            "eos_token_ids": config.eos_token_ids - own,
        }
        for name, ids in given.items():
            if ids and (highest := max(ids)) >= (size := self.tokenizer.vocabulary_size):
                raise InvalidOption(
                    f"{name} has the token id {highest}, and this model's go from 0 to {size - 1}: give ids of its own "
                    "tokenizer."
                )
        if config.min_new_tokens and config.stop_ids.issuperset(self.tokenizer.vocabulary.values()):
            raise InvalidOption(
                f"min_new_tokens={config.min_new_tokens} is not possible where every token id ends the answer: leave "
                "it out, or name fewer stop_token_ids."
            )
        return config

    def room(self, num_prompt_tokens: int, config: GenerationConfig) -> int:
        """The most tokens that an answer can have. Raises PromptTooLong and InvalidOption."""
        context = self.max_context - num_prompt_tokens
        if context < 1:
            raise PromptTooLong(
                f"The prompt has {num_prompt_tokens} tokens and the model's context holds {self.max_context}, "
                "answer included: shorten the prompt, or the conversation that it continues."
            )
        if self.cache_tokens <= num_prompt_tokens:
            return 1  # `Backend.add` refuses what cannot run
        in_cache = min(context, self.cache_tokens - num_prompt_tokens)
        if config.max_new_tokens is not None:
            room = min(context, config.max_new_tokens)
            if config.max_new_tokens == self.own.max_new_tokens:  # which the request did not ask for
                room = min(room, in_cache)
        elif config.max_length is not None:
            if config.max_length <= num_prompt_tokens:
                raise InvalidOption(
                    f"max_length={config.max_length} leaves no room after a prompt of {num_prompt_tokens} tokens: "
                    "raise it, or set max_new_tokens."
                )
            room = min(context, config.max_length - num_prompt_tokens)
            if config.max_length == self.own.max_length:
                room = min(room, in_cache)
        else:
            room = in_cache
        if room < config.min_new_tokens != self.own.min_new_tokens:
            raise InvalidOption(
                f"min_new_tokens={config.min_new_tokens} is more than the {room} tokens that there is room for after "
                f"a prompt of {num_prompt_tokens}: lower it, raise max_length or cache_tokens if they are the limit, "
                "or shorten the prompt."
            )
        return room
