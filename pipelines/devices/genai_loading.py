"""Loads a pair with OpenVINO GenAI, and chooses its way of drafting, which is fixed from then on."""

from __future__ import annotations

import gc
import hashlib
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openvino_genai

from ..config import AUTO, UNLIMITED, GenerationConfig
from ..engine.backend import Room
from ..errors import DeviceFailed, InvalidOption, UnsupportedDevice, reason_of
from ..model.pair import Pair
from ..model.processor import PRECISION
from ..model.profile import keep, kept, profile_path
from ..text.prompt import encode_prompt
from ..text.tokenizer import Tokenizer
from . import devices
from .devices import CPU, NPU
from .genai_config import SPECULATIONS, check_own, lets_draft, to_genai

BLOCK_SIZES = {"GPU": 16}  # tokens in a block of GenAI's cache
BLOCK_SIZE = 32  # the same on other devices
DRAFTING = ("draft_model", "prompt_lookup")  # properties of GenAI that `speculation` stands for
SCHEDULING = frozenset({"scheduler_config", "ATTENTION_BACKEND"})  # properties that configure the cache
TRIED = (  # one to copy from, and one not
    "Repeat this list in lower case, one name a line:\nAnna Berg\nPaul Stein\nMaria Feld\nJonas Bach\nClara Winter\n",
    "Explain in a few sentences why the sky is blue during the day and red in the evening.",
)
TRIED_TOKENS = 48  # of an answer to each
SAMPLE_BYTES = 1 << 16  # of the weights, to tell models of one size apart
TRIED_S = 1.0  # answers are repeated for this long, as a busy machine may delay them

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """The way of drafting that "auto" found fastest."""

    speculation: str


@dataclass(frozen=True, slots=True)
class GenaiLoading:
    """How to load a pair with OpenVINO GenAI, which uses paged attention.

    cache_tokens: size of the cache; None lets it grow with the requests.
    exact: False keeps computed prompts for later ones that begin alike. Measured on the CPU, this made texts depend on
        earlier requests.
    speculation: "off", "lookup" (GenAI's prompt lookup), "draft" (the pair's draft model), or "auto": the faster one of
        the first two on this device, which is measured once and remembered.
    draft_device: where the draft model runs.
    properties: those of `openvino_genai.LLMPipeline`.
    """

    pair: Pair
    device: str
    cache_tokens: int | None = None
    exact: bool = True
    speculation: str = AUTO
    draft_device: str = CPU
    properties: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises InvalidOption."""
        if self.speculation not in SPECULATIONS:
            raise InvalidOption(
                f"speculation={self.speculation!r} is not possible: give one of {', '.join(map(repr, SPECULATIONS))}."
            )
        for name in DRAFTING:
            if name in self.properties:
                raise InvalidOption(
                    f"{name}={self.properties[name]!r} is not possible: give speculation='lookup', or "
                    "speculation='draft' for the pair's draft model."
                )
        if self.speculation == "draft" and self.pair.draft is None:
            raise InvalidOption(
                f"speculation='draft' needs a draft model, and {self.pair.path} has none: choose 'lookup', or export "
                "the pair with --draft."
            )
        if self.draft_device == NPU:
            raise InvalidOption(
                "draft_device='NPU' is not possible with OpenVINO GenAI, whose answers run past their ends there: give "
                "engine='outrider', or choose the CPU or a GPU."
            )
        if self.draft_device != CPU and self.speculation != "draft":
            raise InvalidOption(
                f"draft_device={self.draft_device!r} has no effect with speculation={self.speculation!r}: give "
                "speculation='draft', or leave it out."
            )
        if self.cache_tokens is not None and not SCHEDULING.isdisjoint(self.properties):
            raise InvalidOption(
                f"cache_tokens={self.cache_tokens} is not possible together with "
                f"{', '.join(SCHEDULING & set(self.properties))}: leave one of them out."
            )

    def load(self) -> tuple[openvino_genai.LLMPipeline, str]:
        """The pipeline, and how it drafts: one of SPECULATIONS but "auto". Raises UnsupportedDevice and
        UnsupportedModel."""
        check_own(self.pair.target, self.device, self.speculation)
        if self.speculation != AUTO:
            return self._loaded(self.speculation), self.speculation
        if not lets_draft(self.pair.target):
            return self._loaded("off"), "off"
        known = kept(self._choice_path, Choice)
        if known is not None and known.speculation in SPECULATIONS[:2]:
            return self._loaded(known.speculation), known.speculation
        chosen = self._faster()
        keep(self._choice_path, Choice(chosen))
        return self._loaded(chosen), chosen

    def forget(self) -> None:
        """Have "auto" try again which way is faster."""
        self._choice_path.unlink(missing_ok=True)

    @property
    def _choice_path(self) -> Path:
        """The file that remembers the choice, which also depends on what the model writes, and so on its weights."""
        weights = self.pair.target / "openvino_model.bin"
        with weights.open("rb") as file:
            file.seek(weights.stat().st_size // 2)
            sample = hashlib.sha256(file.read(SAMPLE_BYTES)).hexdigest()
        about = {name: _contents(value) for name, value in self.properties.items()}
        about |= {"cache_tokens": self.cache_tokens, "genai": openvino_genai.get_version()}
        about |= {"weights": (weights.stat().st_size, sample)}
        return profile_path(self.pair, self.device, about, self.exact).with_suffix(".speculation.json")

    @property
    def room(self) -> Room:
        """What the cache has room for."""
        if self.cache_tokens is None:
            return Room(self.pair.max_context, "a model of longer context")
        held = self._num_blocks * self._block_size
        return Room(held, "cache_tokens={tokens} or more", held)

    @property
    def _block_size(self) -> int:
        return BLOCK_SIZES.get(self.device.split(".")[0], BLOCK_SIZE)

    @property
    def _num_blocks(self) -> int:
        return 0 if self.cache_tokens is None else -(-self.cache_tokens // self._block_size)

    def _faster(self) -> str:
        """Whether prompt lookup or plain decoding answers TRIED in less time. Raises UnsupportedDevice."""
        if (tokens := self._tokens_to_try()) > self.room.tokens:
            remedy = self.room.remedy.format(tokens=tokens)
            log.warning("There is no room to try prompt lookup in, so nothing is drafted: load the pair with %s, or "
                        "with speculation='lookup' or 'off'.", remedy)  # fmt: skip
            return "off"
        times_s = {}
        for speculation in ("off", "lookup"):
            try:
                pipeline = self._loaded(speculation)
                with devices.failing(self.device):
                    times_s[speculation] = _answers_s(pipeline, speculation)
                del pipeline
            except (UnsupportedDevice, DeviceFailed) as error:
                if speculation == "off":
                    with devices.failing_to_load(self.device, "speculation='off', so that nothing is tried"):
                        raise
                log.warning("Prompt lookup is not possible on %s, so nothing is drafted: %s", self.device, error)
            gc.collect()  # else two are in memory
        return min(times_s, key=lambda name: times_s[name])

    def _tokens_to_try(self) -> int:
        """The most tokens of a prompt of TRIED and its answer together."""
        tokenizer = Tokenizer(self.pair.target)
        return TRIED_TOKENS + max(len(encode_prompt(each, None, tokenizer, use_template=True)) for each in TRIED)

    def _loaded(self, speculation: str) -> openvino_genai.LLMPipeline:
        given = dict(self.properties)
        if SCHEDULING.isdisjoint(given):
            given["scheduler_config"] = _scheduler(self._num_blocks, prefix_caching=not self.exact)
        if speculation == "lookup":
            given["prompt_lookup"] = True
        try:
            if speculation == "draft":
                precision = "f32" if self.draft_device == CPU else "f16"  # or it would inherit the target's
                given["draft_model"] = openvino_genai.draft_model(
                    self.pair.draft, self.draft_device, **{PRECISION: precision}
                )
            return openvino_genai.LLMPipeline(self.pair.target, self.device, **given)
        except (RuntimeError, TypeError) as error:
            others = ", ".join(devices.device_names())
            with_what = f" with {', '.join(sorted(self.properties))}" if self.properties else ""
            raise UnsupportedDevice(
                f"OpenVINO could not load {self.pair.target} on {self.device}{with_what} ({reason_of(error)}): update "
                f"the device's driver, check the properties, or use another device ({others})."
            ) from error


def _contents(value: object) -> object:
    """What distinguishes a property's value from others: of GenAI's objects the fields, since their text is only their
    address."""
    if not type(value).__module__.startswith(openvino_genai.__name__) or hasattr(value, "__members__"):
        return value
    public = {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}
    return {name: _contents(each) for name, each in public.items() if not callable(each)} or value


def _scheduler(num_blocks: int, prefix_caching: bool) -> openvino_genai.SchedulerConfig:
    """Prompts are read in one pass, as is GenAI's default. With `num_blocks=0` the cache grows as needed."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = num_blocks
    scheduler.max_num_batched_tokens = UNLIMITED
    scheduler.enable_prefix_caching = prefix_caching
    return scheduler


def _answers_s(pipeline: openvino_genai.LLMPipeline, speculation: str) -> float:
    """The shortest time of answers to TRIED, in seconds, after one that compiles kernels."""
    config = to_genai(GenerationConfig(ignore_eos=True), TRIED_TOKENS, speculation=speculation)
    pipeline.generate(TRIED[0], config)
    until, shortest = time.perf_counter() + TRIED_S, math.inf
    while shortest == math.inf or time.perf_counter() < until:
        began = time.perf_counter()
        for prompt in TRIED:
            pipeline.generate(prompt, config)
        shortest = min(shortest, time.perf_counter() - began)
    return shortest
