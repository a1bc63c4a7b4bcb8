"""What was measured of a pair on this machine, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import openvino as ov
from platformdirs import user_cache_path
from pydantic import TypeAdapter, ValidationError

from ..speculation.cost import CostModel
from .pair import Pair
from .processor import instruction_limit
from .timing import NoMeasurement

T = TypeVar("T")

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where this system keeps what programs can make again."""
    return user_cache_path("outrider", appauthor=False)


def profile_path(pair: Pair, device: str, properties: Mapping[str, Any], exact: bool | None) -> Path:
    """Where the measurements of a pair belong: another model, device, version, set of instructions or number of
    threads, another file. So does another wish for exactness, since other passes are run then.

    A model is known by its graph, which fixes what a pass costs; the values of its weights do not.
    """
    models = [path for path in (pair.target, pair.draft) if path is not None]
    threads = ov.Core().get_property(device, "INFERENCE_NUM_THREADS")
    processor = ov.Core().get_property(device, "FULL_DEVICE_NAME")
    about = [device, ov.get_version(), threads, processor, sorted(properties.items()), exact, instruction_limit()]
    digest = hashlib.sha256(json.dumps(about, default=str).encode())
    for model in models:
        digest.update((model / "openvino_model.xml").read_bytes())
    return cache_folder() / "cost" / f"{digest.hexdigest()[:32]}.json"


def measured_cost(path: Path, measure: Callable[[], CostModel]) -> CostModel | None:
    """The cost model kept in `path`, or a new one, which is kept there; so is what it learns of what was guessed. None,
    with a warning, where none can be had."""
    kept = CostModel.load(path)
    if kept is not None:
        kept.keep_on(path)
        return kept
    try:
        cost = measure()
    except NoMeasurement as error:
        log.warning("What passes cost on this machine cannot be told, so answers are decoded plainly: %s", error)
        return None
    try:
        cost.save(path)
        cost.keep_on(path)
    except OSError as error:
        log.warning("What was measured cannot be kept, so it is measured again next time: %s", error)
    return cost


def kept(path: Path, kind: type[T]) -> T | None:
    """The value of this kind that is kept in `path`; None where there is none, or a damaged one."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def keep(path: Path, value: object) -> None:
    """Keep what was found to be right for a model, to be spared trying it again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(TypeAdapter(type(value)).dump_json(value))
    except OSError as error:
        log.warning("What was found out about the model cannot be kept, so it is tried again next time: %s", error)
