"""LoadOptions: how the commands load a pair."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.pipelines import InvalidOption, LLMPipeline, Pair
from outrider.pipelines.devices.devices import CPU, NPU, OUTRIDER, stand_in
from outrider.pipelines.devices.genai_loading import GenaiLoading


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

    def load(self, pair: Path) -> LLMPipeline:
        """Raises what LLMPipeline raises."""
        return LLMPipeline(
            pair,
            self.device,
            exact=self.exact,
            reference=self.reference,
            engine=self.engine,
            speculation=self.speculation,
            draft_device=self.draft_device,
            fallback=self.fallback,
            **self.properties,
        )

    @property
    def uses_genai(self) -> bool:
        """Whether OpenVINO GenAI decodes."""
        return self.device not in (CPU, NPU) and self.engine != OUTRIDER

    @property
    def stand_in(self) -> str | None:
        """What computes in the place of an NPU; None if it does, or there is none."""
        return stand_in(self.device, self.properties)

    def forget(self, pair: Path) -> None:
        """Have OpenVINO GenAI's ways of drafting be tried again. Raises BrokenPair and InvalidOption."""
        if self.uses_genai:
            exact = self.exact is not False
            GenaiLoading(Pair.open(pair), self.device, exact=exact, properties=self.properties).forget()

    def on(self, device: str) -> LoadOptions:
        """The same on another device, without what was meant for the first."""
        if device == self.device:
            return self
        reference = self.reference if device in (CPU, NPU) else None
        return LoadOptions(device, exact=self.exact, reference=reference)


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
