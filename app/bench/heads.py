"""Heads: several of one target in one report, numbered from 1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from outrider.pipelines import AUTO, InvalidOption, Pair
from outrider.pipelines.model.heads.head_kind import open_head
from outrider.pipelines.speculation.drafters.head import Head

from .report import Entry, Report

MODES = ("head", "chained", AUTO)  # in which a head drafts
OF_HEAD = {*MODES, Head.name}
NOTE = "Each head's speed is compared with plain decoding between its own answers."

Value = TypeVar("Value")


def check_heads(pair: Path, heads: Sequence[Path], modes: Sequence[str] | None) -> None:
    """Find out before the first head is measured whether all of them draft for this target, and in one of `modes`,
    which are all if None.

    Raises InvalidOption, and what `Pair.open`, `Pair.with_head` and `open_head` raise.
    """
    if len(heads) > 1 and modes and not {*modes} & {*MODES}:
        raise InvalidOption(
            f"No head drafts in mode {' or '.join(modes)}: give one --head at most, or add --mode {MODES[0]}."
        )
    opened = Pair.open(pair)
    for head in heads:
        opened.with_head(head)
        open_head(head.expanduser(), opened.target, num_blocks=1)


def numbered(label: str, number: int) -> str:
    """The label of a mode, a drafter or a role with the number of its head, if it has to do with one."""
    name, *lossy = label.split(", ")
    return ", ".join((f"{name} {number}", *lossy)) if name in OF_HEAD else label


def parted(label: str) -> tuple[str, int]:
    """The mode or drafter that a label names, and the number of its head; 0 if it is not numbered."""
    name, number = re.split(r"\W+", f"{label} ")[:2]
    return name, int(number) if number.isdecimal() else 0


def together(reports: Sequence[Report]) -> Report:
    """One report of a pair with each of several heads.

    What has to do with no head is that of the first report; speedups are over the plain decoding of their own report.
    """

    def renamed(entry: Entry, number: int) -> Entry:
        by_depth = {numbered(name, number): seen for name, seen in entry.by_depth.items()}
        return replace(entry, mode=numbered(entry.mode, number), by_depth=by_depth)

    first = reports[0]
    entries = [
        renamed(entry, number)
        for family in first.families
        for number, report in enumerate(reports, 1)
        for entry in report.entries
        if entry.family == family and (number == 1 or parted(entry.mode)[0] in MODES)
    ]
    return replace(
        first,
        about={**first.about, "models": _by_number(report.about["models"] for report in reports)},
        exact=all(report.exact for report in reports),
        entries=tuple(entries),
        samples=tuple(replace(sample, mode=numbered(sample.mode, 1)) for sample in first.samples),
        draft_ms=_by_number(report.draft_ms for report in reports),
        begin_ms=_by_number(report.begin_ms for report in reports),
        notes=(*dict.fromkeys(note for report in reports for note in report.notes), NOTE),
        interrupted=any(report.interrupted for report in reports),
    )


def _by_number(named: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for number, of_report in enumerate(named, 1):
        for name, value in of_report.items():
            found.setdefault(numbered(name, number), value)
    return found
