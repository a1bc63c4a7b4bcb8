"""Profile: what was measured of a pair on this machine, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

import openvino as ov
from filelock import FileLock, Timeout
from platformdirs import user_cache_path
from pydantic import TypeAdapter, ValidationError

from .pair import MODEL, Pair, head_model
from .processor import instruction_limit, instructions, usable_cpus

WAIT_S = 300.0  # for another process that finds out the same; one that was suspended would be waited for in vain
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
    properties, instruction sets, CPUs, and on `exact`, which changes the passes that are run.

    A model is identified by its graph, which determines the cost of a pass; the values of its weights do not.
    """
    models = [path / MODEL for path in (pair.target, pair.draft, pair.exit) if path is not None]
    if pair.head is not None:
        models.append(pair.head / head_model(pair.head))
    core = ov.Core()
    names = [_told(core, each) for each in dict.fromkeys(("CPU", device, draft_device))]
    about = [
        device, draft_device, ov.get_version(), names, sorted(properties.items()), exact, usable_cpus(), instructions(),
        instruction_limit(),
    ]  # fmt: skip
    if pair.skipping is not None:
        about.append((pair.skipping.layers, pair.skipping.is_exit))
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


def kept(path: Path, kind: type[T]) -> T | None:
    """The value of type `kind` that is saved in `path`; None if it is missing or damaged."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


@contextmanager
def one_at_a_time(path: Path, kind: type[T]) -> Iterator[None]:
    """Unless `path` has a value of type `kind`, admit one process after the other, so that the first one finds the
    value out and the others use it: they must look it up again in this context. Where nothing can be kept, or after
    WAIT_S seconds, each finds it out by itself.
    """
    with ExitStack() as held:
        if kept(path, kind) is None:
            held.enter_context(_turn(path))
            if kept(path, kind) is not None:  # found out meanwhile, so that others need not wait
                held.close()
        yield


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    with ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(path.with_suffix(".lock"), timeout=WAIT_S))
        except Timeout:
            log.warning("A process that has been measuring the pair for %.0f s is not waited for any longer.", WAIT_S)
        except (OSError, NotImplementedError) as error:  # the latter for file systems without locks
            log.info("Other processes are not waited for, since no file can be locked: %s", error)
        yield


def keep(path: Path, value: object) -> None:
    """Save a value that takes long to find; a failure is logged."""
    try:
        write_whole(path, TypeAdapter(type(value)).dump_json(value))
    except OSError as error:
        log.warning("What was measured of the pair cannot be kept and will be measured again next time: %s", error)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is never seen half written, whoever else writes it. Raises OSError, and leaves what was
    there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=f"{path.stem}.", suffix=".partial", delete=False) as file:
        partial = Path(file.name)
        try:
            file.write(content)
            file.close()
            partial.replace(path)
        except OSError:
            file.close()
            partial.unlink(missing_ok=True)
            raise


def discard(path: Path) -> None:
    """Remove what was saved, if anything was; a failure is logged."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("Earlier measurements of the pair cannot be removed: %s", error)
