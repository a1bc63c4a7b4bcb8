"""GenerationConfig: the options of a request, with the names, defaults and meanings of `openvino_genai`'s."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import openvino_genai

from .errors import BrokenPair, InvalidOption, UnknownOption
from .genai_options import NEUTRAL, without_genais
from .structured.structured_output import StructuredOutputConfig

AUTO = "auto"
log = logging.getLogger(__name__)

Mode: TypeAlias = Literal["off", "lookup", "suffix", "recycling", "draft", "head", "skip", "exit", "chained", "auto"]
MODES: tuple[str, ...] = get_args(Mode)
EXACT, TYPICAL, THRESHOLD, REJECTION = "exact", "typical", "threshold", "rejection"
Acceptance: TypeAlias = Literal["exact", "typical", "threshold", "rejection"]
ACCEPTANCES: tuple[str, ...] = get_args(Acceptance)
PARAMETERS = {"typical_epsilon": TYPICAL, "typical_delta": TYPICAL, "rollback_threshold": THRESHOLD}  # of which rule
UNLIMITED = 2**64 - 1  # how openvino_genai spells "no limit" in an unsigned field
ALIASES = {"seed": "rng_seed", "max_tokens": "max_new_tokens", "stop": "stop_strings", "speculation": "mode"}


@dataclass(frozen=True, kw_only=True)  # no slots, since the properties are read for every token and cached
class GenerationConfig:
    """The options of one request. Raises InvalidOption if a value is out of range.

    Drafting changes the speed and never the tokens, unless `acceptance` says otherwise:

    mode: "off": plain decoding, without drafts. "lookup": the latest n-gram match in prompt and answer. "suffix": an
        index of prompt and answer, which also learns how the answer edits what it copies, and the reference folder if
        the pipeline has one. "recycling": the same, and the token that the target last found likeliest after each
        token. "draft": the draft model. "head": the head on the target's hidden states. "skip": the target without some
        of its layers. "exit": its first layers. "chained": the text drafters that usually pay, followed by one of these
        models. "auto": whichever of these pay most, as far as the pair has them.
    num_assistant_tokens: tokens to draft for each pass; None for as many as pay.
    max_ngram_size: the longest n-gram of mode "lookup".
    acceptance: the rule by which drafted tokens are kept (see `engine/verify.py`). "exact": those that the target
        writes itself; same seed, same text. The others are lossy, and are used only where they are named: the text
        depends on what is drafted, so on the mode, on other requests and on measured times, unless the mode is
        "lookup", `num_assistant_tokens` is given, and passes and cache have room for all drafts. "typical" (Medusa) and
        "threshold" (BiLD) also keep tokens that the target finds probable enough, which changes the distribution.
        "rejection" (speculative sampling) keeps the target's distribution, but not the text of a seed. In greedy
        decoding "typical" and "rejection" give the text of "exact"; "threshold" does not. No rule keeps a token that
        the other options rule out.
    typical_epsilon, typical_delta: parameters of "typical"; None for 0.09 and 0.3.
    rollback_threshold: parameter of "threshold", in nats; None for 2.

    Decoding is greedy unless `do_sample` is set and the temperature is above 0. A limit of None means no limit.

    stop_strings: the answer ends at the character before one; with `include_stop_str_in_output`, at its last character.
        OpenVINO GenAI cuts at tokens.
    presence_penalty, frequency_penalty: subtracted from the scores of tokens that the answer has, once or for each
        occurrence, as in OpenAI's API. OpenVINO GenAI adds them to scores below 0, and so makes these tokens likelier.
    logit_bias: added to the scores of the given token ids, after penalties; any mapping is accepted.
    logprobs: how many of the likeliest tokens to report at each place, in addition to the chosen one.
    structured_output_config: tokens that would violate it are impossible, and the answer ends when the structure is
        complete. Stop strings, stop tokens and length can still end it earlier.
    """

    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int = 0
    ignore_eos: bool = False
    stop_strings: frozenset[str] = frozenset()
    include_stop_str_in_output: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    eos_token_ids: frozenset[int] = frozenset()
    apply_chat_template: bool = True

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    rng_seed: int = 0
    num_return_sequences: int = 1
    logprobs: int = 0
    structured_output_config: StructuredOutputConfig | None = None

    mode: str = AUTO
    num_assistant_tokens: int | None = None
    max_ngram_size: int = 3
    acceptance: str = EXACT
    typical_epsilon: float | None = None
    typical_delta: float | None = None
    rollback_threshold: float | None = None

    def __post_init__(self) -> None:
        for name in ("stop_strings", "stop_token_ids", "eos_token_ids"):
            object.__setattr__(self, name, _frozen(name, getattr(self, name)))
        if self.top_k == 0:  # how transformers and openvino_genai spell "no limit"
            object.__setattr__(self, "top_k", None)
        object.__setattr__(self, "logit_bias", _pairs("logit_bias", self.logit_bias))
        for name, (holds, expected) in _RULES.items():
            value = getattr(self, name)
            if not holds(value):
                raise InvalidOption(f"{name}={value!r} is not possible: give {expected}.")
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise InvalidOption(
                f"min_new_tokens={self.min_new_tokens} is more than max_new_tokens={self.max_new_tokens}: lower it, "
                "or raise max_new_tokens."
            )
        if self.structured_output_config is not None:
            form = StructuredOutputConfig.of(self.structured_output_config)
            object.__setattr__(self, "structured_output_config", form)
            if self.min_new_tokens:
                raise InvalidOption(
                    f"min_new_tokens={self.min_new_tokens} is not possible with structured_output_config, which says "
                    "where an answer may end: leave it out, and ask for the length in the schema, regex or grammar."
                )
        if self.lossy and self.mode == "off":
            raise InvalidOption(
                f"acceptance={self.acceptance!r} has no effect with mode='off', which drafts nothing: leave it out, or "
                "choose another mode."
            )
        for name, rule in PARAMETERS.items():
            if self.acceptance != rule and (value := getattr(self, name)) is not None:
                raise InvalidOption(
                    f"{name}={value!r} has no effect with acceptance={self.acceptance!r}: leave it out, or set "
                    f"acceptance={rule!r}."
                )
        if self.num_return_sequences > 1 and self.greedy:
            raise InvalidOption(
                f"num_return_sequences={self.num_return_sequences} would return the same greedy answer "
                "several times: set do_sample=True and a temperature above 0."
            )

    @cached_property
    def greedy(self) -> bool:
        return not self.do_sample or self.temperature == 0.0

    @cached_property
    def lossy(self) -> bool:
        """Whether drafts may change the answer."""
        return self.acceptance != EXACT

    @cached_property
    def penalizes(self) -> bool:
        """Whether anything changes the logits."""
        changes = (self.presence_penalty, self.frequency_penalty, self.logit_bias, self.min_new_tokens)
        return self.repetition_penalty != 1.0 or any(changes)

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """The token ids that end the answer."""
        return self.stop_token_ids if self.ignore_eos else self.stop_token_ids | self.eos_token_ids

    def updated(self, options: Mapping[str, Any]) -> GenerationConfig:
        """This configuration with some options changed. Raises UnknownOption and InvalidOption.

        Options that only OpenVINO GenAI has are taken where they change nothing. A `max_new_tokens` given alone lowers
        this configuration's `min_new_tokens` if that is higher, a `structured_output_config` sets it to 0, and an
        `acceptance` drops the parameters of other rules.
        """
        options = without_genais(options)
        for name in options:
            if name not in _NAMES:
                close = ALIASES.get(name) or next(iter(difflib.get_close_matches(name, _NAMES, n=1)), None)
                hint = f"did you mean {close}?" if close else f"known options are {', '.join(_NAMES)}."
                raise UnknownOption(f"Unknown generation option {name!r}: {hint}")
        if "min_new_tokens" not in options:
            limit = options.get("max_new_tokens")
            if options.get("structured_output_config") is not None:
                options = {**options, "min_new_tokens": 0}
            elif isinstance(limit, int):
                options = {**options, "min_new_tokens": min(self.min_new_tokens, limit)}
        if "acceptance" in options:
            others = (name for name, rule in PARAMETERS.items() if rule != options["acceptance"])
            options = {**dict.fromkeys(others), **options}
        return replace(self, **options)

    @classmethod
    def from_folder(cls, folder: Path) -> GenerationConfig:
        """The defaults in a model's generation_config.json. Raises BrokenPair if it cannot be read."""
        path = folder / "generation_config.json"
        if not path.exists():
            return cls()
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            eos = stored.get("eos_token_id")
            options = {name: stored[name] for name in _STORED if stored.get(name) is not None}
            unknown = {
                name: stored[name] for name, plain in _LEFT_OUT.items() if stored.get(name, plain[0]) not in plain
            }
        except (OSError, ValueError, AttributeError) as error:
            raise BrokenPair(f"{path} cannot be read ({error}): export the pair again.") from error
        if unknown:
            log.warning("%s has options that Outrider does not know, and leaves out: %s", path, unknown)
        if isinstance(options.get("stop_strings"), str):
            options["stop_strings"] = [options["stop_strings"]]
        options["eos_token_ids"] = [] if eos is None else eos if isinstance(eos, list) else [eos]
        try:
            return cls(**options)
        except InvalidOption as error:
            raise BrokenPair(f"{path} holds an impossible value. {error}") from error

    @classmethod
    def from_genai(cls, config: openvino_genai.GenerationConfig) -> GenerationConfig:
        """Convert an `openvino_genai.GenerationConfig`. Raises UnknownOption for what only that one can do."""
        default = openvino_genai.GenerationConfig()
        values = {name: getattr(config, name) for name in dir(config) if not name.startswith("_")}
        given = {name: v for name, v in values.items() if not callable(v) and v != getattr(default, name)}
        options: dict[str, Any] = {}
        for name, value in without_genais(given).items():
            if name == "eos_token_id":
                options["eos_token_ids"] = {value}
            elif name in _NAMES:
                options[name] = None if value == UNLIMITED else value
            else:
                raise UnknownOption(
                    f"{name}={value!r} of openvino_genai.GenerationConfig is not supported by Outrider: leave it at "
                    f"{getattr(default, name)!r}."
                )
        if options.get("num_assistant_tokens") == 0:
            options["mode"] = "off"
            del options["num_assistant_tokens"]
        elif config.is_prompt_lookup():
            options["mode"] = "lookup"
        if options.get("ignore_eos"):  # there it also applies to stop tokens, which include the model's end token
            options.pop("stop_token_ids", None)
        return cls(**options)


_NAMES = tuple(f.name for f in fields(GenerationConfig))
_STORED = (
    "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "max_new_tokens", "max_length", "min_new_tokens", "ignore_eos", "stop_strings",
    "include_stop_str_in_output",
)  # fmt: skip
# What OpenVINO GenAI obeys in such a file and Outrider does not, with the values that change nothing.
_LEFT_OUT = {name: NEUTRAL[name] for name in ("num_beams", "no_repeat_ngram_size", "echo")}
_LEFT_OUT["num_return_sequences"] = (1,)


def _frozen(name: str, values: Any) -> frozenset[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        example = f", such as {{{values!r}}}" if isinstance(values, (str, int)) else ""
        raise InvalidOption(f"{name}={values!r} is not possible: give a set{example}.")
    try:
        return frozenset(values)
    except TypeError as error:
        raise InvalidOption(f"{name}={values!r} is not possible: give a set of plain values.") from error


def _pairs(name: str, values: Any) -> tuple[tuple[Any, Any], ...]:
    try:
        return tuple(sorted(dict(values).items()))
    except (TypeError, ValueError) as error:
        raise InvalidOption(f"{name}={values!r} is not possible: give a dictionary of numbers by token id.") from error


def _whole(low: int, high: float = float("inf")) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _number(holds: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and holds(value)


def _optional(rule: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or rule(value)


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _ids(values: Any) -> bool:
    return all(_whole(0)(value) for value in values)


def _biases(pairs: Any) -> bool:
    return all(_whole(0)(token) and _number(lambda v: -100 <= v <= 100)(bias) for token, bias in pairs)


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": (_optional(_whole(1)), "a whole number from 1 up, or None"),
    "max_length": (_optional(_whole(1)), "a whole number from 1 up (prompt and answer together), or None"),
    "min_new_tokens": (_whole(0), "a whole number from 0 up"),
    "ignore_eos": (_truth, "True or False"),
    "stop_strings": (lambda values: all(isinstance(v, str) and v for v in values), "a set of strings, none empty"),
    "include_stop_str_in_output": (_truth, "True or False"),
    "stop_token_ids": (_ids, "a set of token ids"),
    "eos_token_ids": (_ids, "a set of token ids"),
    "apply_chat_template": (_truth, "True or False"),
    "do_sample": (_truth, "True or False"),
    "temperature": (_number(lambda v: 0 <= v <= 1e308), "a number from 0 up"),
    "top_k": (_optional(_whole(1)), "a whole number from 1 up, or None or 0 for no limit"),
    "top_p": (_number(lambda v: 0 < v <= 1), "a number above 0, at most 1"),
    "min_p": (_number(lambda v: 0 <= v < 1), "a number from 0 up, below 1"),
    "repetition_penalty": (_number(lambda v: 1e-6 <= v <= 1e6), "a number from 1e-6 to 1e6, 1 for none"),
    "presence_penalty": (_number(lambda v: -1e6 <= v <= 1e6), "a number from -1e6 to 1e6, 0 for none"),
    "frequency_penalty": (_number(lambda v: -1e6 <= v <= 1e6), "a number from -1e6 to 1e6, 0 for none"),
    "logit_bias": (_biases, "a dictionary from token ids to numbers from -100 to 100"),
    "rng_seed": (_whole(0, UNLIMITED), "a whole number from 0 up to 2**64 - 1"),
    "num_return_sequences": (_whole(1), "a whole number from 1 up"),
    "logprobs": (_whole(0, 20), "a whole number from 0 to 20"),
    "mode": (lambda value: value in MODES, "one of " + ", ".join(map(repr, MODES))),
    "num_assistant_tokens": (
        _optional(_whole(1, 32)),
        "a whole number from 1 to 32, None for as many as pay, or mode='off' for no drafting",
    ),
    "max_ngram_size": (_whole(1, 32), "a whole number from 1 to 32"),
    "acceptance": (lambda value: value in ACCEPTANCES, "one of " + ", ".join(map(repr, ACCEPTANCES))),
    "typical_epsilon": (_optional(_number(lambda v: 0 < v <= 1)), "a number above 0, at most 1, or None"),
    "typical_delta": (_optional(_number(lambda v: 0 < v <= 1)), "a number above 0, at most 1, or None"),
    "rollback_threshold": (_optional(_number(lambda v: 0 <= v <= 1e308)), "a number from 0 up, or None"),
}
