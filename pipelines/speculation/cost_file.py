"""The file in which a cost model is kept."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from .cost import CostModel
from .draft_cost import DraftCost

FORMAT = 12

log = logging.getLogger(__name__)


def save(cost: CostModel, path: Path) -> None:
    """Write `cost.refined()` to `path`, atomically. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    known = cost.refined()
    stored = {**_stored(known), "drafts": {name: _stored(draft) for name, draft in known.drafts.items()}}
    try:
        partial.write_text(json.dumps({"format": FORMAT, **stored}), encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


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
