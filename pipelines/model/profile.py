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

from ..speculation import cost_file
from ..speculation.cost import CostModel
from .pair import MODEL, Pair, head_model
from .processor import instruction_limit
from .timing import NoMeasurement

NAMES = ("FULL_DEVICE_NAME", "NPU_DRIVER_VERSION", "NPU_COMPILER_VERSION", "GPU_DRIVER_VERSION")

T = TypeVar("T")

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """The user's folder for data that can be computed again."""
    return user_cache_path("outrider", appauthor=False)


def profile_path(
    pair: Pair, device: str, properties: Mapping[str, Any], exact: bool | None, draft_device: str = "CPU"
) -> Path:
    """The file for measurements of a pair. It depends on models, devices and their drivers, OpenVINO's version,
    properties, instruction set, threads, and on `exact`, which changes the passes that are run.

    A model is identified by its graph, which determines the cost of a pass; the values of its weights do not.
    """
    models = [path / MODEL for path in (pair.target, pair.draft, pair.exit) if path is not None]
    if pair.head is not None:
        models.append(pair.head / head_model(pair.head))
    core = ov.Core()
    threads = core.get_property("CPU", "INFERENCE_NUM_THREADS")
    names = [_told(core, each) for each in dict.fromkeys(("CPU", device, draft_device))]
    about = [
        device, draft_device, ov.get_version(), threads, names, sorted(properties.items()), exact, instruction_limit(),
    ]  # fmt: skip
    if pair.skipping is not None:
        about.append(pair.skipping.layers)
    digest = hashlib.sha256(json.dumps(about, default=str).encode())
    for model in models:
        digest.update(model.read_bytes())
    return cache_folder() / "cost" / f"{digest.hexdigest()[:32]}.json"


def _told(core: ov.Core, device: str) -> list[str | None]:
    """The name of a device and of its drivers; None for what it does not tell, such as a stand-in."""
    told: list[str | None] = []
    for name in NAMES:
        try:
            told.append(str(core.get_property(device, name)))
        except RuntimeError:
            told.append(None)
    return told


def measured_cost(path: Path, measure: Callable[[], CostModel]) -> CostModel | None:
    """The cost model saved in `path`, or else a new one, which is saved there now and as it learns. None, with a
    warning, if no measurement is possible."""
    kept = cost_file.load(path)
    if kept is not None:
        cost_file.keep_on(kept, path)
        return kept
    try:
        cost = measure()
    except NoMeasurement as error:
        log.warning("The cost of a pass cannot be measured on this machine, so nothing is drafted: %s", error)
        return None
    try:
        cost_file.save(cost, path)
        cost_file.keep_on(cost, path)
    except OSError as error:
        log.warning("The measurement cannot be kept and will be repeated next time: %s", error)
    return cost


def kept(path: Path, kind: type[T]) -> T | None:
    """The value of type `kind` that is saved in `path`; None if it is missing or damaged."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def keep(path: Path, value: object) -> None:
    """Save a value that takes long to find; a failure is logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(TypeAdapter(type(value)).dump_json(value))
    except OSError as error:
        log.warning("How to compile the model cannot be kept and will be tried again next time: %s", error)
