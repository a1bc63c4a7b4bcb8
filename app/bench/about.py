"""The conditions of a benchmark: machine, versions, models, date."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import openvino as ov

from outrider.pipelines import Pair


def describe(pair: Pair, packages: Iterable[str] = ("outrider", "openvino")) -> dict[str, Any]:
    """What a reader must know to interpret the figures."""
    models = {role: _model(metadata) for role, metadata in pair.metadata.get("models", {}).items()}
    if pair.head not in (None, pair.path / "head"):
        models["head"] = {"from": str(pair.head)}
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "pair": str(pair.path),
        "models": models,
    }


def machine() -> dict[str, Any]:
    return {
        "processor": ov.Core().get_property("CPU", "FULL_DEVICE_NAME"),
        "logical_cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def in_words(about: Mapping[str, Any]) -> list[str]:
    """The result of `describe` as lines of text."""
    machine = about["machine"]
    models = [f"{role}: {', '.join(f'{k} {v}' for k, v in m.items())}" for role, m in about["models"].items()]
    return [
        f"{about['date']}, {machine['processor']}, {machine['logical_cores']} logical cores, {machine['system']}",
        ", ".join(f"{name} {number}" for name, number in about["versions"].items()),
        "; ".join([about["pair"], *models]),
    ]


def _model(metadata: Mapping[str, Any]) -> dict[str, Any]:
    count = sum(metadata.get("precisions", {}).values())
    described = {name: metadata[name] for name in ("weights", "group_size") if name in metadata}
    return {"million_weights": round(count / 1e6, 1), **described}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
