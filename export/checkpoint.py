"""Checkpoint: a decoder language model on this machine, as transformers saves it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.models.checkpoint import VOCABULARIES, WEIGHTS, download
from outrider.models.digest import sha256
from outrider.models.errors import NoSuchModel
from outrider.models.hub import TEXT_FILES
from outrider.pipelines.errors import UnsupportedModel

from .errors import NotADecoder
from .needs import listed, needs_of_model

HEADS = {  # kinds by architecture
    "LlamaForCausalLMEagle3": "eagle3",
    "Eagle3LlamaForCausalLM": "eagle3",
    "ExitHead": "exit",
    "DFlashDraftModel": "dflash",
    "MtpHead": "mtp",
    "MedusaModel": "medusa",
    "HydraModel": "hydra",
}
COUNTED = {"medusa_num_heads": "MedusaModel", "hydra_num_heads": "HydraModel"}  # published heads name no architecture
# Kinds of the heads within the checkpoints of targets, by the target's architecture, and the names of their weights.
HEADS_WITHIN = {"MiMoForCausalLM": ("mtp", "model.mtp_layers.")}
# Architectures that compute the same as one that transformers knows: the class and the model type of that one.
RENAMED = {"MiMoForCausalLM": ("Qwen2ForCausalLM", "qwen2")}
OTHER_HEADS = {
    "EagleLlamaForCausalLM": "a head of EAGLE's first version, which optimum-intel cannot convert",
    "EAGLEModel": "a head of EAGLE's first version, which optimum-intel cannot convert",
    "Eagle3Speculator": "an EAGLE-3 head as vLLM's speculators saves it, which optimum-intel cannot convert",
    "Eagle3DraftModel": "an EAGLE-3 head as vLLM's speculators saves it, which optimum-intel cannot convert",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that passed the checks of `find_checkpoint`.

    source: the path or hub id that the user gave.
    revision: the commit of a model on the hub, or `sha256:` and a digest of the files of a local one.
    architecture: the model class in transformers.
    size: bytes of all weight files.
    num_weights: number of weights in all weight files.
    remote_code: whether Python code of the checkpoint may be run.
    """

    source: str
    folder: Path
    revision: str
    architecture: str
    size: int
    num_weights: int
    remote_code: bool = False

    @property
    def head_kind(self) -> str | None:
        """The kind of a head, which drafts from the hidden states of another model, or of the head within a target;
        None for other models."""
        return HEADS.get(self.architecture) or HEADS_WITHIN.get(self.architecture, (None,))[0]

    @property
    def is_head(self) -> bool:
        return self.architecture in HEADS

    def config(self) -> dict[str, Any]:
        """What config.json says."""
        return _read_config(self.source, self.folder)

    def digest(self) -> str:
        """`sha256:` and a digest of all files that a model's answers depend on, whichever commit they are of."""
        patterns = (*TEXT_FILES, *VOCABULARIES, "*.py")
        others = {file for pattern in patterns for file in self.folder.glob(pattern)} - {self.folder / "config.json"}
        return _fingerprint(self.folder, [*_weight_files(self.source, self.folder), *sorted(others)])

    def head_within(self) -> Checkpoint:
        """The head in the checkpoint of a target, with its share of the weights. Raises NoSuchModel without one."""
        _, prefix = HEADS_WITHIN[self.architecture]
        num_weights = sum(_count_weights(file, prefix) for file in _weight_files(self.source, self.folder))
        if not num_weights:
            raise NoSuchModel(f"{self.source} has no weights {prefix}*: choose a checkpoint that has kept its head.")
        return replace(self, num_weights=num_weights, size=self.size * num_weights // self.num_weights)


def find_checkpoint(source: str, remote_code: bool, announce: Callable[[str], None]) -> Checkpoint:
    """The checkpoint in the folder `source`, or else that of the hub id `source`, which is downloaded.

    announce: called before a download, and with its progress.

    Raises NoSuchModel, NotADecoder, UnsupportedModel, HubUnreachable, OtherRevision, BadDownload, NoRoom, InProgress.
    """
    here = Path(source)
    if source.startswith(("~/", "~\\")):  # shells leave that to us after --target=
        here = here.expanduser()
    if source and here.is_dir():
        folder, revision = here, ""
    elif here.exists() or source.startswith((".", "/", "~")) or source.partition("@")[0].count("/") > 1:
        named = source or "An empty name"
        raise NoSuchModel(f"{named} is not a folder: give the folder of a checkpoint, or a hub id such as ORG/NAME.")
    else:
        folder, revision = (found := download(source, remote_code, announce)).folder, found.revision
    architecture = _decoder_architecture(source, folder, remote_code)
    files = _weight_files(source, folder)
    return Checkpoint(
        source=source,
        folder=folder,
        revision=revision or _fingerprint(folder, files),
        architecture=architecture,
        size=sum(file.stat().st_size for file in files),
        num_weights=sum(map(_count_weights, files)),
        remote_code=remote_code,
    )


def require_weights(source: str, missing: Collection[str]) -> None:
    """Raises NoSuchModel if there are missing weights. transformers gives them random values, and goes on."""
    if missing:
        first = ", ".join(sorted(missing)[:3]) + (", …" if len(missing) > 3 else "")
        raise NoSuchModel(
            f"{source} lacks {len(missing)} of its model's weights ({first}): download it again, or save it again with "
            "these names."
        )


def _decoder_architecture(source: str, folder: Path, remote_code: bool) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = _read_config(source, folder)
    architectures = config.get("architectures") or [name for field, name in COUNTED.items() if field in config]
    for architecture in architectures:
        if architecture in HEADS or architecture in RENAMED:
            return str(architecture)
        if architecture in OTHER_HEADS:
            raise NotADecoder(
                f"{source} is {OTHER_HEADS[architecture]}: choose another head or a draft model for this target."
            )
    if needs := needs_of_model(config):
        raise UnsupportedModel(
            f"{source} ({' '.join(architectures)}) cannot be run yet, for want of {listed(needs)}: choose a model of "
            "text without these, such as one of the class Qwen3ForCausalLM."
        )
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.get("model_type", ""), ())
    known = (known,) if isinstance(known, str) else known
    for architecture in architectures:
        if architecture in known and not config.get("is_encoder_decoder"):
            return str(architecture)
        if "AutoModelForCausalLM" in (config.get("auto_map") or {}):
            if remote_code:
                return str(architecture)
            raise NotADecoder(
                f"{source} ({architecture}) needs its own Python code. If you have read that code and trust it, add "
                "--trust-remote-code."
            )
    raise NotADecoder(
        f"{source} is {' '.join(architectures) or 'a model of unknown architecture'}, not a decoder language model: "
        "choose one whose config.json names a class for causal language modelling, such as LlamaForCausalLM."
    )


def _read_config(source: str, folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NoSuchModel(f"{source} has no config.json: it is not a checkpoint saved by transformers.") from error
    except ValueError as error:
        raise NoSuchModel(f"{folder / 'config.json'} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise NoSuchModel(f"{folder / 'config.json'} is not the configuration of a model: download it again.")
    return config


def _weight_files(source: str, folder: Path) -> list[Path]:
    for pattern in WEIGHTS:
        if files := sorted(folder.glob(pattern)):
            _require_parts(source, folder, pattern.replace("*", ""))
            return files
    raise NoSuchModel(f"{source} has no weights: none of {', '.join(WEIGHTS)} in {folder}.")


def _require_parts(source: str, folder: Path, whole: str) -> None:
    """Raises NoSuchModel where weights are in parts, in place of the file `whole`, and not all of these are there."""
    index = folder / f"{whole}.index.json"
    if (folder / whole).exists() or not index.is_file():
        return
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoSuchModel(f"{index} is damaged ({type(error).__name__}: {error}): download it again.") from error
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise NoSuchModel(
            f"{source} lacks {len(missing)} of the {len(names)} files of its weights ({', '.join(missing[:3])}"
            f"{', …' * (len(missing) > 3)}): download them again."
        )


def _count_weights(file: Path, prefix: str = "") -> int:
    """The number of weights in a file whose names begin with `prefix`; of all weights if the file does not name
    them."""
    if file.suffix != ".safetensors":
        return file.stat().st_size // 2
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as tensors:
            shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys() if name.startswith(prefix)]  # noqa: SIM118  no mapping
    except SafetensorError as error:
        raise NoSuchModel(f"{file} is damaged or incomplete: {error}") from error
    return sum(map(math.prod, shapes))


def _fingerprint(folder: Path, files: list[Path]) -> str:
    digests = [sha256(file) for file in (folder / "config.json", *files)]
    return f"sha256:{hashlib.sha256(''.join(digests).encode()).hexdigest()}"
