"""The export: converts, compresses and tests a pair, and publishes its folder at the end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from outrider.models import pair_folder
from outrider.models.room import blaming_full_disk, in_words, require_room
from outrider.models.staging import Staging
from outrider.pipelines.errors import InvalidOption, OutriderError
from outrider.pipelines.model.heads.head_kind import tapped_layers
from outrider.pipelines.model.pair import num_layers
from outrider.pipelines.model.parts import require_layers
from outrider.pipelines.model.tuning import fastest_properties
from outrider.pipelines.model.vocabulary import check_same_vocabulary

from .checkpoint import Checkpoint, find_checkpoint
from .compression import BYTES_PER_WEIGHT, Compression
from .convert import compress, convert, precisions
from .device import Device, check_weights, default_weights, grouped
from .device_check import check_on
from .errors import NotADecoder
from .extra import require_extra
from .heads.convert_head import convert_head
from .heads.ir import halve
from .heads.taps import NAMED_BY_IR, choose_taps, tap_candidates
from .needs import has_head, listed, needs_of_head
from .round_trip import round_trip
from .skip_layers import choose_layers
from .tokenizer import SAMPLES, convert_tokenizer, differing_samples
from .vocabulary import digest, load_tokenizer, vocabulary

INT8 = Compression("int8")
HEADS = ("head", "exit")  # roles

Announce = Callable[[str], None]
T = TypeVar("T")


def export_pair(
    target: str | Path,
    draft: str | Path | None,
    out: str | Path,
    *,
    target_compression: Compression | None = None,
    draft_compression: Compression = INT8,
    head_compression: Compression | None = None,
    device: Device = "CPU",
    head: str | Path | None = None,
    skip_layers: Sequence[int] | Literal["auto"] = (),
    exit_layer: int | None = None,
    force: bool = False,
    remote_code: bool = False,
    announce: Announce = lambda text: None,
) -> Path:
    """Export a target and what drafts for it as a pair to the folder `out`, and return its path.

    target, draft, head: folders, or hub ids, which are downloaded. The draft can be a head, too: one that drafts from
        the target's hidden states. The head can be the target's checkpoint, if that holds one. Without either, the pair
        drafts from texts only.
    target_compression: None takes the weights that suit `device`.
    head_compression: None takes that of the draft model.
    skip_layers: layers that the target leaves out when it drafts by itself, counted from 0; "auto" tries which.
    exit_layer: the first layer after an early exit with which the target drafts without a head.
    device: where the target is to run. It is checked there as well as on the CPU.
    force: replace a pair at `out` once the new one is complete.
    remote_code: run Python code of the checkpoints.
    announce: called with each step before it begins.

    Raises the errors in outrider.export.errors and outrider.models.errors, VocabularyMismatch, UnsupportedModel and
    InvalidOption. After an error, `out` is as before.
    """
    target_compression = target_compression or Compression(default_weights(device))
    check_weights(device, target_compression)
    require_extra()
    given = {"target": target, "draft": draft, "head": head}
    sources = {role: source for role, source in given.items() if source is not None}
    compressions = {"target": target_compression, "draft": draft_compression}
    compressions |= dict.fromkeys(HEADS, head_compression or draft_compression)
    with Staging(Path(out), force) as staging, blaming_full_disk(staging.path):
        announce("Reading the checkpoints")
        checkpoints = {role: find_checkpoint(str(path), remote_code, announce) for role, path in sources.items()}
        checkpoints = _by_role(checkpoints)
        if head_compression is not None and not any(role in checkpoints for role in HEADS):
            raise InvalidOption(
                f"--head-weights {head_compression.weights} is for a head, and none is given: leave it out."
            )
        if head_compression is not None and "draft" not in checkpoints and draft_compression.weights != INT8.weights:
            raise InvalidOption(
                f"--draft-weights {draft_compression.weights} is for a draft model, and none is given: leave it out."
            )
        _check_skipping(checkpoints, skip_layers, exit_layer)
        compressions["target"] = grouped(device, target_compression, checkpoints["target"].num_weights)
        needed = _bytes_needed([(checkpoint, compressions[role]) for role, checkpoint in checkpoints.items()])
        require_room(staging.out.parent, needed, f"Exporting to {staging.out}")
        writing = {role: checkpoint for role, checkpoint in checkpoints.items() if role not in HEADS}
        tokenizers = {role: load_tokenizer(checkpoint) for role, checkpoint in writing.items()}
        words = {role: vocabulary(tokenizer) for role, tokenizer in tokenizers.items()}
        if "draft" in words:
            announce("Comparing the vocabularies")
            check_same_vocabulary(words["target"], words["draft"], f"{target} and {draft}")
        heads = {  # first, since converting a large target takes long and they may not go together
            role: _make_head(checkpoints, role, compressions[role], staging.path, announce)
            for role in HEADS
            if role in checkpoints
        }
        models = {
            role: _make(role, checkpoint, tokenizers[role], compressions[role], staging.path / role, announce)
            for role, checkpoint in writing.items()
        }
        models |= heads
        announce("Measuring which properties make the target fastest")
        folder = staging.path / "target"
        models["target"]["properties"] = _named(checkpoints, staging.path, lambda: fastest_properties(folder))
        choosing = partial(_with_skipping, folder, models["target"]["properties"], skip_layers, exit_layer, announce)
        models["target"] |= _named(checkpoints, staging.path, choosing)
        if "head" in checkpoints:
            tapping = partial(_with_taps, checkpoints, staging.path, models, announce)
            models["head"] |= _named(checkpoints, staging.path, tapping)
        announce("Hashing the files")
        metadata = pair_folder.describe(staging.path, models)
        pair_folder.write(staging.path, metadata)
        announce("Compiling the pair, and answering once in every mode")
        tried = _named(checkpoints, staging.path, lambda: round_trip(staging.path))
        modes = ", ".join(name for name, report in tried.items() if isinstance(report, dict))
        announce(f"The same answer in each: {modes}" if tried["exact"] else f"Answered in each: {modes}")
        devices = {"CPU": "checked"}
        if device != "CPU":
            devices |= _named(checkpoints, staging.path, lambda: check_on(device, folder, announce))
        checks = {
            "vocabulary": {
                "tokens": len(words["target"]),
                "sha256": digest(words["target"]),
                "same_in": list(words),
            },
            "round_trip": tried,
            "devices": devices,
        }
        pair_folder.write(staging.path, {**metadata, "checks": checks})
        gc.collect()  # compiled models map the files that are renamed next
        staging.publish()
    return staging.out


def _make(
    role: str, checkpoint: Checkpoint, tokenizer: Any, compression: Compression, folder: Path, announce: Announce
) -> dict[str, Any]:
    """Write the IR folder of one model. Returns its entry for pair.json."""
    announce(f"Converting the {role}, {checkpoint.source} ({checkpoint.num_weights / 1e6:,.1f} million weights)")
    convert(checkpoint, folder, half=compression.weights == "fp16")
    if compression.weights != "fp16":
        announce(f"Compressing the {role} to {compression.weights}")
        compress(folder, compression, checkpoint.source)
    announce(f"Converting the tokenizer of the {role}")
    convert_tokenizer(tokenizer, checkpoint, folder)
    differing = differing_samples(tokenizer, folder)
    if differing:
        announce(
            f"Warning: the converted tokenizer differs from its original on {len(differing)} of {len(SAMPLES)} texts"
        )
    announce(f"The {role} takes {in_words(pair_folder.size(folder))}")
    return {
        **_described(checkpoint, compression),
        "precisions": precisions(folder),
        "bytes": pair_folder.size(folder),
        "tokenizer": {"samples": len(SAMPLES), "differing": differing},
    }


def _by_role(checkpoints: Mapping[str, Checkpoint]) -> dict[str, Checkpoint]:
    """The checkpoints by role; a head that was given as the draft gets the role of a head. Raises NotADecoder."""
    found = dict(checkpoints)
    if "draft" in found and found["draft"].is_head:
        if "head" in found:
            raise NotADecoder(f"{found['draft'].source} is a head, as is {found['head'].source}: leave one out.")
        found["head"] = found.pop("draft")
    if found["target"].is_head:
        raise NotADecoder(f"{found['target'].source} is a head, not a target: give it with --draft.")
    if "head" in found and not found["head"].is_head:
        found["head"] = _head_within(found["head"])
    if "head" in found and found["head"].head_kind == "exit":
        found["exit"] = found.pop("head")
    return found


def _head_within(target: Checkpoint) -> Checkpoint:
    """The head that the checkpoint of a target contains. Raises NotADecoder."""
    if target.head_kind is not None:
        return target.head_within()
    if has_head(config := target.config()):
        needs = needs_of_head(config) or ["the names of its weights"]
        raise NotADecoder(
            f"The MTP head in {target.source} ({target.architecture}) cannot be run yet, for want of {listed(needs)}: "
            "leave --head out, or give a head or a draft model of its own."
        )
    raise NotADecoder(f"{target.source} is a {target.architecture}, not a head: give it with --draft.")


def _check_skipping(
    checkpoints: Mapping[str, Checkpoint], skip_layers: Sequence[int] | Literal["auto"], exit_layer: int | None
) -> None:
    """The target drafts by itself in one way at most, with layers that it has. Raises InvalidOption and
    UnsupportedModel."""
    ways = [("--skip-layers", bool(skip_layers)), ("--exit-layer", exit_layer is not None)]
    ways.append(("the head of an early exit", "exit" in checkpoints))
    given = [name for name, is_given in ways if is_given]
    if len(given) > 1:
        raise InvalidOption(f"{' and '.join(given)} do not go together: leave out all but one.")
    layers = [exit_layer] if exit_layer is not None else skip_layers
    if layers and layers != "auto":
        require_layers(layers, num_layers(checkpoints["target"].folder), Path(checkpoints["target"].source))


def _with_skipping(
    target: Path,
    properties: Mapping[str, Any],
    skip_layers: Sequence[int] | Literal["auto"],
    exit_layer: int | None,
    announce: Announce,
) -> dict[str, Any]:
    """What pair.json says of the layers that drafts skip."""
    if exit_layer is not None:
        return {"exit_layer": exit_layer}
    if skip_layers == "auto":
        announce("Trying which layers drafts can skip")
        found = choose_layers(target, properties)
        announce(f"Drafts skip layers {found['skip_layers']}" if found.get("skip_layers") else "Drafts skip no layers")
        return found
    return {"skip_layers": sorted({*skip_layers})} if skip_layers else {}


def _make_head(
    checkpoints: Mapping[str, Checkpoint], role: str, compression: Compression, pair: Path, announce: Announce
) -> dict[str, Any]:
    """Write the IR folder of a head to the folder of the pair. Returns its entry for pair.json."""
    head, target, folder = checkpoints[role], checkpoints["target"], pair / role
    announce(f"Converting the head, {head.source} ({head.num_weights / 1e6:,.1f} million weights)")
    if role == "head" and head.head_kind not in NAMED_BY_IR:
        tap_candidates(head, target)
    convert_head(head, target, folder)
    if compression.weights == "fp16":
        halve(folder)
    else:
        announce(f"Compressing the head to {compression.weights}")
        compress(folder, compression, head.source)
    announce(f"The head takes {in_words(pair_folder.size(folder))}")
    measured = {"precisions": precisions(folder), "bytes": pair_folder.size(folder)}
    return {"kind": head.head_kind, **_described(head, compression), **measured}


def _with_taps(
    checkpoints: Mapping[str, Checkpoint], pair: Path, models: Mapping[str, Any], announce: Announce
) -> dict[str, Any]:
    """What pair.json says of the layers that the head reads. Several candidates are tried with the pair as it is so
    far."""
    if checkpoints["head"].head_kind in NAMED_BY_IR:
        return {"taps": list(tapped_layers(pair / "head", num_layers(pair / "target")))}
    candidates = tap_candidates(checkpoints["head"], checkpoints["target"])
    if len(candidates) > 1:
        announce("Trying which layers of the target the head reads")
        pair_folder.write(pair, pair_folder.describe(pair, models))
    return choose_taps(pair, candidates)


def _described(checkpoint: Checkpoint, compression: Compression) -> dict[str, Any]:
    return {
        "source": checkpoint.source,
        "revision": checkpoint.revision,
        "architecture": checkpoint.architecture,
        "weights": compression.weights,
        **compression.settings,
    }


def _named(checkpoints: Mapping[str, Checkpoint], pair: Path, run: Callable[[], T]) -> T:
    """Call `run`. Errors name the checkpoint instead of the temporary folder."""
    try:
        return run()
    except OutriderError as error:
        message = str(error)
        for role, checkpoint in checkpoints.items():
            message = message.replace(str(pair / role), checkpoint.source)
        raise type(error)(message) from error


def _bytes_needed(parts: Collection[tuple[Checkpoint, Compression]]) -> int:
    """Bytes for all results and the largest uncompressed IR; each of those is removed before the next is written."""
    results = sum(BYTES_PER_WEIGHT[compression.weights] * checkpoint.num_weights for checkpoint, compression in parts)
    return int(results) + max(checkpoint.size for checkpoint, _ in parts)
