"""Pair: a target and what drafts for it, on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import BrokenPair

MODEL = "openvino_model.xml"
MTP_MODEL = "openvino_mtp_model.xml"  # a head that optimum-intel exports into the folder of its target
VISION_TARGET = "openvino_language_model.xml"  # the decoder that optimum-intel exports of a model of images and text
MODEL_FILES = (
    MODEL, "openvino_model.bin", "openvino_tokenizer.xml", "openvino_tokenizer.bin", "openvino_detokenizer.xml",
    "openvino_detokenizer.bin", "config.json",
)  # fmt: skip

# What config.json calls these where not by their usual names.
OTHER_NAMES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length"),
}


@dataclass(frozen=True, slots=True)
class Skipping:
    """How a target drafts by itself.

    layers: those that drafts skip, counted from 0, ascending.
    is_exit: whether they are all layers from one on, so that drafts leave the model early.
    head: the folder of a trained head after such an exit, in place of the target's last norm.
    """

    layers: tuple[int, ...]
    is_exit: bool = False
    head: Path | None = None


def name_of(pair: Path) -> str:
    """The name of a pair's folder, or of the parent folder if it is just called "pair"."""
    folder = pair.resolve()
    return folder.parent.name if folder.name == "pair" else folder.name


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair folder contains target/, pair.json and, if there are a draft model, a head and the head of an early exit,
    draft/, head/ and exit/. A bare IR folder is a pair without any of these.

    target, draft, head, exit: the models' folders; None for those that the pair lacks.
    metadata: the content of pair.json.
    """

    path: Path
    target: Path
    draft: Path | None
    head: Path | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    exit: Path | None = None

    @classmethod
    def open(cls, path: str | Path) -> Pair:
        """Find the models in a folder. Raises BrokenPair if a file is missing or cannot be read."""
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise BrokenPair(
                f"There is no folder {folder}: give a folder that `outrider export` made, or that of a pulled pair, "
                "which `outrider.models.pulled.find_pair` finds by its name."
            )
        folder = folder.absolute()  # it is read later, too, when the program may work elsewhere
        if (folder / VISION_TARGET).is_file() and not (folder / MODEL).is_file():
            raise BrokenPair(
                f"{folder} holds a model of images and text, which cannot be run yet: give a pair whose target reads "
                "text only."
            )
        if not any((folder / name).exists() for name in (MODEL, "pair.json")):
            raise BrokenPair(
                f"{folder} is not a pair, since it has neither pair.json nor openvino_model.xml: give a folder that "
                "`outrider export` made."
            )
        if (folder / MODEL).is_file():
            pair = cls(folder, folder, None)
        else:
            drafting = {role: folder / role for role in ("draft", "head", "exit") if (folder / role).is_dir()}
            metadata = read_json(folder / "pair.json")
            found = (drafting.get("draft"), drafting.get("head"), metadata, drafting.get("exit"))
            pair = cls(folder, folder / "target", *found)
        files: dict[Path | None, Sequence[str]] = {pair.target: MODEL_FILES, pair.draft: MODEL_FILES}
        files |= {head: _head_files(head) for head in (pair.head, pair.exit) if head is not None}
        for model, names in files.items():
            missing = [name for name in names if model is not None and not (model / name).is_file()]
            if missing:
                raise BrokenPair(f"{model} lacks {', '.join(missing)}: export the pair again.")
        for role, model in (("draft", pair.draft), ("head", pair.head), ("exit", pair.exit)):
            if model is None and role in pair._models:
                raise BrokenPair(f"{folder} lacks the {role}/ folder that its pair.json names: export the pair again.")
        return pair

    def with_head(self, head: str | Path) -> Pair:
        """The same pair with the exported head in a folder instead of its own. Raises BrokenPair."""
        folder = Path(head).expanduser()
        missing = [name for name in _head_files(folder) if not (folder / name).is_file()]
        if missing:
            raise BrokenPair(f"{folder} is not an exported head, since it lacks {', '.join(missing)}: give its folder.")
        return replace(self, head=folder.absolute())

    @property
    def name(self) -> str:
        return name_of(self.path)

    @property
    def properties(self) -> dict[str, str | int]:
        """OpenVINO properties for the target. They can change its text, so they are part of the pair.

        Raises BrokenPair.
        """
        target = self._models.get("target", {})
        found = target.get("properties", {}) if isinstance(target, dict) else None
        if not isinstance(found, dict) or not all(isinstance(value, (str, int)) for value in found.values()):
            raise BrokenPair(f"{self.path / 'pair.json'} has invalid properties ({found!r}): export the pair again.")
        return found

    @property
    def skipping(self) -> Skipping | None:
        """How the target drafts by itself, by pair.json or the exit's config.json; None if it does not.

        Raises BrokenPair.
        """
        target = self._models.get("target", {})
        about = target if isinstance(target, dict) else {}
        layers = about.get("skip_layers", [])
        first = about.get("exit_layer") if self.exit is None else read_json(self.exit / "config.json").get("exit_layer")
        if not layers and first is None and self.exit is None:
            return None
        number = num_layers(self.target)
        if first is not None or self.exit is not None:
            if layers or not isinstance(first, int) or not _are_layers([first], number):
                also = f" in addition to layers to skip ({layers!r})" if layers else ""
                raise BrokenPair(f"{self.path} has an exit before layer {first!r}{also}: export the pair again.")
            return Skipping(tuple(range(first, number)), True, self.exit)
        if not _are_layers(layers, number):
            raise BrokenPair(f"{self.path / 'pair.json'} has invalid layers to skip ({layers!r}): export it again.")
        return Skipping(tuple(sorted({*layers})))

    @property
    def _models(self) -> dict[str, Any]:
        models = self.metadata.get("models", {})
        if not isinstance(models, dict):
            raise BrokenPair(f"{self.path / 'pair.json'} does not list its models ({models!r}): export the pair again.")
        return models

    @property
    def max_context(self) -> int:
        """The most tokens of prompt and answer together, by the target's config.json."""
        return context_length(self.target)


def head_model(folder: Path) -> str:
    """The name of the file with a head's IR."""
    return MTP_MODEL if (folder / MTP_MODEL).is_file() else MODEL


def _head_files(folder: Path) -> tuple[str, ...]:
    name = head_model(folder)
    return name, Path(name).with_suffix(".bin").name, "config.json"


def _are_layers(layers: object, number: int) -> bool:
    """Whether drafts can skip these layers of a model with `number` layers: the first one reads the tokens."""
    return isinstance(layers, list) and all(type(layer) is int and 1 <= layer < number for layer in layers)


def num_layers(model: Path) -> int:
    """The number of a model's layers. Raises BrokenPair if its config.json does not say."""
    number = _described(model, "num_hidden_layers")
    if not isinstance(number, int) or number < 1:
        raise BrokenPair(f"{model / 'config.json'} has no num_hidden_layers: add the model's number of layers.")
    return number


def context_length(model: Path) -> int:
    """The longest sequence that a model supports, in tokens. Raises BrokenPair if its config.json does not say."""
    length = _described(model, "max_position_embeddings")
    if not isinstance(length, int) or length < 2:
        raise BrokenPair(f"{model / 'config.json'} has no max_position_embeddings: add the model's context length.")
    return length


def _described(model: Path, name: str) -> Any:
    """A value of config.json, in which multimodal models keep those of their text model apart."""
    config = read_json(model / "config.json")
    inner = config.get("text_config")
    parts = [config, inner] if isinstance(inner, dict) else [config]
    found = (part.get(each) for each in (name, *OTHER_NAMES[name]) for part in parts)
    return next((value for value in found if value), None)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises BrokenPair."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BrokenPair(f"{path} cannot be read ({error}): export the pair again.") from error
    if not isinstance(content, dict):
        raise BrokenPair(f"{path} is not a JSON object: export the pair again.")
    return content
