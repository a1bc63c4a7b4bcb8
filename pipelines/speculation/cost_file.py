"""Cost file: where a cost model is kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..model.profile import write_whole
from ..model.timing import NoMeasurement
from .cost import CostModel
from .draft_cost import DraftCost

FORMAT = 12

log = logging.getLogger(__name__)


def measured_cost(path: Path, measure: Callable[[], CostModel], anew: bool = False) -> CostModel | None:
    """The cost model saved in `path`, unless it is to be measured anew, or else a new one, which is saved there now and
    as it learns. None, with a warning, if no measurement is possible."""
    known = None if anew else load(path)
    if known is not None:
        keep_on(known, path)
        return known
    try:
        cost = measure()
    except NoMeasurement as error:
        log.warning("The cost of a pass cannot be measured on this machine, so nothing is drafted: %s", error)
        return None
    try:
        save(cost, path)
        keep_on(cost, path)
    except OSError as error:
        log.warning("The measurement cannot be kept and will be repeated next time: %s", error)
    return cost


def save(cost: CostModel, path: Path) -> None:
    """Write `cost.refined()` to `path`, atomically. Raises OSError."""
    known = cost.refined()
    stored = {**_stored(known), "drafts": {name: _stored(draft) for name, draft in known.drafts.items()}}
    write_whole(path, json.dumps({"format": FORMAT, **stored}).encode())


def keep_on(cost: CostModel, path: Path) -> None:
    """Save corrections of estimated costs to `path` from time to time, until that fails."""

    def keep(refined: CostModel) -> None:
        try:
            save(refined, path)
        except OSError as error:
            log.warning("The refined costs of passes cannot be kept: %s", error)
            cost.when_refined = None

    cost.when_refined = keep


def load(path: Path) -> CostModel | None:
    """The model in `path`; None if it is missing, damaged, or of another format."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if stored.pop("format") != FORMAT:
            return None
        rows, base_ms, context_ms = (tuple(stored.pop(name)) for name in ("rows", "base_ms", "context_ms"))
        drafts = {name: DraftCost(**costs) for name, costs in stored.pop("drafts").items()}
        is_tiled, change_ms = stored.pop("is_tiled"), stored.pop("change_ms")
        base_doubt, context_doubt = (tuple(stored.pop(name)) for name in ("base_doubt", "context_doubt"))
        sound = (
            len(rows) == len(base_ms) == len(context_ms) >= 2
            and all(isinstance(each, int) for each in rows)
            and all(0 < a < b for a, b in pairwise(rows))
            and all(a <= b for costs in (base_ms, context_ms) for a, b in pairwise(costs))
            and all(0 <= cost < float("inf") for cost in (*base_ms, *context_ms))
            and all(0 <= cost < float("inf") for draft in drafts.values() for cost in _stored(draft).values())
            and min(base_ms) > 0
            and isinstance(is_tiled, bool)
            and 0 <= change_ms < float("inf")
            and all(len(doubt) in (0, len(rows)) for doubt in (base_doubt, context_doubt))
            and all(0 <= each < float("inf") for each in (*base_doubt, *context_doubt))
            and not stored
        )
        doubts = base_doubt, context_doubt
        return CostModel(rows, base_ms, context_ms, drafts, is_tiled, *doubts, change_ms) if sound else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _stored(costs: CostModel | DraftCost) -> dict[str, Any]:
    """The fields that are saved."""
    return {each.name: getattr(costs, each.name) for each in fields(costs) if each.init}
