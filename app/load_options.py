"""LoadOptions: how the commands load a pair."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from outrider.pipelines import InvalidOption, LLMPipeline, Pair
from outrider.pipelines.devices.devices import CPU, NPU, OUTRIDER, npu_properties, stand_in
from outrider.pipelines.devices.genai_loading import GenaiLoading

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options of `LLMPipeline`, with the same meanings."""

    device: str = CPU
    draft_device: str = CPU
    engine: str | None = None
    speculation: str | None = None
    fallback: str | None = None
    exact: bool | None = None
    reference: Path | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    head: Path | None = None
    cache_tokens: int | None = None

    def load(self, pair: Path) -> LLMPipeline:
        """Raises what LLMPipeline raises."""
        return LLMPipeline(
            pair,
            self.device,
            cache_tokens=self.cache_tokens,
            exact=self.exact,
            reference=self.reference,
            engine=self.engine,
            speculation=self.speculation,
            draft_device=self.draft_device,
            fallback=self.fallback,
            head=self.head,
            **self.properties,
        )

    @property
    def uses_genai(self) -> bool:
        """Whether OpenVINO GenAI decodes."""
        return self.device not in (CPU, NPU) and self.engine != OUTRIDER

    @property
    def stand_in(self) -> str | None:
        """What computes in place of an NPU; None if the NPU computes, or if none is used."""
        return stand_in(NPU if NPU in (self.device, self.draft_device) else self.device, self.properties)

    def forget(self, pair: Path) -> None:
        """Have OpenVINO GenAI's ways of drafting be tried again. Raises BrokenPair and InvalidOption."""
        if self.uses_genai:
            exact = self.exact is not False
            GenaiLoading(
                Pair.open(pair), self.device, self.cache_tokens, exact=exact, properties=self.properties
            ).forget()

    def drafting_on(self, draft_device: str) -> LoadOptions:
        """These options with the draft model on another device, without an NPU's properties if no NPU is used."""
        properties = dict(self.properties)
        if NPU not in (self.device, draft_device):
            for name in npu_properties(properties):
                del properties[name]
        return replace(self, draft_device=draft_device, properties=properties)

    def on(self, device: str) -> LoadOptions:
        """These options for another device, without what does not fit it, which is logged. Properties belong to the
        first device, except those of a draft model on an NPU."""
        if device == self.device:
            return self
        are_gpus = not {self.device, device} & {CPU, NPU}
        engine, speculation = (self.engine, self.speculation) if are_gpus else (None, None)
        fallback = None if device == CPU else self.fallback
        properties = npu_properties(self.properties) if self.draft_device == NPU else {}
        cache_tokens = None if device == NPU else self.cache_tokens
        fitting = replace(
            self, device=device, engine=engine, speculation=speculation, fallback=fallback, properties=properties,
            head=None, cache_tokens=cache_tokens,
        )  # fmt: skip
        if fitting.uses_genai:
            draft_device = self.draft_device if speculation == "draft" else CPU
            fitting = replace(fitting, draft_device=draft_device, reference=None, properties={})
        left_out = [
            each.name for each in fields(self)
            if each.name != "device" and getattr(self, each.name) != getattr(fitting, each.name)
        ]  # fmt: skip
        if left_out:
            log.warning("The pair is loaded on %s without %s, which %s given for %s.", device, " and ".join(left_out),
                        "were" if len(left_out) > 1 else "was", self.device)  # fmt: skip
        return fitting


def properties_of(given: Iterable[str]) -> dict[str, str | int]:
    """OpenVINO properties, each given as NAME=VALUE; whole numbers become int. Raises InvalidOption."""
    properties: dict[str, str | int] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise InvalidOption(f"--property {each} is not possible: give NAME=VALUE, such as MAX_PROMPT_LEN=2048.")
        if name in inspect.signature(LLMPipeline.__init__).parameters:
            raise InvalidOption(f"--property {each} is not a property of OpenVINO: use the command's own options.")
        properties[name] = int(value) if value.removeprefix("-").isdecimal() else value
    return properties
