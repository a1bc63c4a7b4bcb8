"""The catalogue: matching targets, drafts and heads on the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from .errors import BadCatalogue, UnknownName

SHIPPED = Path(__file__).with_name("catalogue.json")
CACHE_TOKENS = 16384  # the pipeline's default

_HASH = "[0-9a-f]{40}"
_STRICT = ConfigDict(strict=True, extra="forbid")

Commit = Annotated[str, Field(pattern=f"^{_HASH}$")]  # a full hash, which unlike a branch or tag never moves


def is_commit(revision: str) -> bool:
    """Whether `revision` is a full commit hash."""
    return re.fullmatch(_HASH, revision) is not None


@dataclass(frozen=True, slots=True)
class Model:
    """An exported model on the hub.

    parameters, bits: the number of weights, and the bits of most of them.
    weight_bytes: the size of the weights as listed on the hub; None if unread.
    cache_bytes: bytes per token in the key-value cache at 8 bits a value; None if unknown.
    confirmed: a page that names the repository.
    revision: the commit to pull; None for the newest.
    """

    __pydantic_config__ = _STRICT

    repository: str
    licence: str
    weights: str
    parameters: int
    bits: int
    confirmed: str
    weight_bytes: int | None = None
    cache_bytes: int | None = None
    revision: Commit | None = None

    @property
    def size(self) -> int:
        """Bytes of the weights: listed, or else computed as parameters times bits."""
        return self.weight_bytes if self.weight_bytes is not None else self.parameters * self.bits // 8


@dataclass(frozen=True, slots=True)
class Entry:
    """A pair of the catalogue. `devices`: the devices that its target suits; the draft model may run on another."""

    name: str
    about: str
    target: Model
    draft: Model | None
    devices: tuple[str, ...]

    @property
    def models(self) -> tuple[Model, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def download_bytes(self) -> int:
        """Bytes of the weights, which are almost all of the download."""
        return sum(model.size for model in self.models)

    @property
    def is_computed(self) -> bool:
        """Whether a size is computed rather than read from the hub."""
        return any(model.weight_bytes is None for model in self.models)

    @property
    def memory_bytes(self) -> int:
        """Estimated bytes of the weights, and of a cache of CACHE_TOKENS tokens for models of known shape."""
        return self.download_bytes + CACHE_TOKENS * sum(model.cache_bytes or 0 for model in self.models)

    def as_dict(self) -> dict[str, Any]:
        def described(model: Model) -> dict[str, Any]:
            return {
                "repository": model.repository,
                "licence": model.licence,
                "weights": model.weights,
                "bytes": model.size,
                "bytes_are": "computed" if model.weight_bytes is None else "read",
                "confirmed": model.confirmed,
                "revision": model.revision,
            }

        return {
            "name": self.name,
            "about": self.about,
            "target": described(self.target),
            "draft": None if self.draft is None else described(self.draft),
            "devices": list(self.devices),
            "download_bytes": self.download_bytes,
            "memory_bytes": self.memory_bytes,
        }


@dataclass(frozen=True, slots=True)
class Head:
    """A head on the hub, which drafts from the hidden states of its target. Both are checkpoints, to be exported.

    kind: such as "eagle3".
    confirmed: a page that names the repository and its licence.
    """

    __pydantic_config__ = _STRICT

    repository: str
    target: str
    kind: str
    licence: str
    confirmed: str

    @property
    def command(self) -> str:
        """How to make a pair of both."""
        out = self.target.split("/")[-1].lower()
        return f"outrider export --target {self.target} --head {self.repository} --out {out}"


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All entries, a note about them, and heads to export."""

    note: str
    entries: tuple[Entry, ...]
    heads: tuple[Head, ...]

    @classmethod
    def shipped(cls) -> Catalogue:
        """The catalogue that comes with Outrider."""
        return cls.read(SHIPPED)

    @classmethod
    def read(cls, path: Path) -> Catalogue:
        """Read a catalogue file. Raises BadCatalogue."""
        try:
            listed = TypeAdapter(_Listed).validate_json(path.read_bytes())
            entries = tuple(pair.entry(listed.models) for pair in listed.pairs)
        except (OSError, ValidationError, KeyError) as error:
            raise BadCatalogue(f"{path} cannot be read ({error!r}): reinstall Outrider.") from error
        return cls(listed.note, entries, listed.heads)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    def entry(self, name: str) -> Entry:
        """The entry of a name. Raises UnknownName, which suggests similar names."""
        for entry in self.entries:
            if entry.name == name:
                return entry
        similar = get_close_matches(name.lower(), self.names, n=3, cutoff=0.4)
        remedy = f"did you mean {' or '.join(similar)}?" if similar else "`outrider models list` shows all names."
        raise UnknownName(f"The catalogue has no pair {name!r}: {remedy}")


@dataclass(frozen=True, slots=True)
class _ListedPair:
    """A pair as the file has it: `target` and `draft` are names of models."""

    __pydantic_config__ = _STRICT

    name: str
    about: str
    target: str
    draft: str | None
    devices: tuple[str, ...]

    def entry(self, models: Mapping[str, Model]) -> Entry:
        """Raises KeyError for a model that is not among `models`."""
        draft = None if self.draft is None else models[self.draft]
        return Entry(self.name, self.about, models[self.target], draft, self.devices)


@dataclass(frozen=True, slots=True)
class _Listed:
    """The catalogue as the file has it. `models` are by the names that the pairs use."""

    __pydantic_config__ = _STRICT

    note: str
    models: dict[str, Model]
    pairs: tuple[_ListedPair, ...]
    heads: tuple[Head, ...]
