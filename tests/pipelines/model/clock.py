"""A clock that only passes of models move on, and models that take what a test says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.pipelines.model import contest, tuning
from outrider.pipelines.model.processor import PRECISION
from outrider.pipelines.model.target import Rows, Window
from outrider.pipelines.model.threads import NUM_THREADS


class Clock:
    """Models whose passes take what `takes` says for a trait: a group size, a precision, parts of products. With an
    `inexact` trait, no number of rows keeps the bits; with others, passes have at least as many as `fewest` says.

    relative: for numbers of parts, what passes of one row and of more take in times of that.
    threads: the same for numbers of threads; the first is the one that OpenVINO chooses.
    loaded: what was loaded, as precision and parts; exact ones, since others are not tried.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        takes: dict[object, float],
        inexact: object = "none",
        fewest: dict[object, int] | None = None,
        filled: float | dict[object, float] = 1.0,
    ) -> None:
        self.now = 0.0
        self.takes = takes
        self.relative: dict[object, tuple[float, float]] = {}
        self.threads = {8: (1.0, 1.0)}
        self.loaded: list[tuple[str, int | None]] = []
        self.packing_s = 0.0  # that the first pass of a model takes in addition
        self.check_s = 0.0  # that finding out about exactness takes
        self.noise = lambda: 1.0  # factor on the time of a pass
        self.weight_bytes = contest.BESIDE_BYTES + 1  # of each model
        clock = self

        class Model:
            longest_inner = 8192

            def __init__(
                self,
                folder: Path,
                num_blocks: int,
                properties: dict,
                exact: bool,
                longest: int | None,
                taps: tuple[int, ...],
            ) -> None:
                self.num_blocks = num_blocks
                self.precision = properties[PRECISION]
                self.exact = exact
                self.rows = Rows()
                self.weight_bytes = clock.weight_bytes
                self.num_threads = properties.get(NUM_THREADS, next(iter(clock.threads)))
                self.packing_s = clock.packing_s
                self.traits = [properties.get(tuning.GROUP_SIZE, 32), self.precision, longest]
                clock.loaded.append((self.precision, longest))

            def resize(self, num_blocks: int) -> None:
                self.num_blocks = num_blocks

            def forward(self, windows: list[Window]) -> None:
                took = next(took for trait, took in clock.takes.items() if trait in self.traits)
                for relative in (clock.relative.get(self.traits[-1], (1.0, 1.0)), clock.threads[self.num_threads]):
                    took *= relative[sum(len(each.tokens) for each in windows) > 1]
                share = filled.get(self.traits[-1], 1.0) if isinstance(filled, dict) else filled
                clock.now += self.packing_s
                self.packing_s = 0.0
                clock.now += clock.noise() * took * (share if self.rows.fewest > 1 else 1.0)

        def exact_rows(
            model: Model, max_context: int, is_affordable: Callable[[int], bool], until: float
        ) -> Rows | None:
            self.now += self.check_s
            if self.now > until:
                raise TimeoutError
            traits = [*model.traits, f"{model.num_threads} threads"]
            least = max(fewest.get(trait, 1) for trait in traits) if fewest else 1
            if inexact in traits or not is_affordable(least):
                return None
            model.rows = Rows(least)
            return model.rows

        monkeypatch.setattr(tuning, "PagedModel", Model)
        monkeypatch.setattr(tuning, "fastest_precision", lambda: "bf16")
        monkeypatch.setattr(tuning.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(tuning, "exact_rows", exact_rows)
        monkeypatch.setattr(tuning, "is_quiet", lambda: True)
        monkeypatch.setattr(tuning, "other_numbers", lambda own: [each for each in self.threads if each != own])
        monkeypatch.setattr(tuning, "is_exact", lambda model, *context: inexact not in model.traits)


class Large:
    """A clock's model, taken for a large one of which the first layers are tried.

    loaded: whether the first layers only were loaded, one model after the other, each with the numbers of its
        threads and parts.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: Clock, inexact_whole: object = "none") -> None:
        self.loaded: list[tuple[bool, int, int | None]] = []
        whole = tuning.PagedModel
        large = self

        class First(whole):
            def __init__(self, folder, num_blocks, num_layers, properties, exact, longest) -> None:
                assert num_layers == 4
                self.is_first = True
                super().__init__(folder, num_blocks, properties, exact, longest, ())

        class Whole(whole):
            is_first = False

        def note(model) -> None:
            large.loaded.append((model.is_first, model.num_threads, model.traits[-1]))

        for kind in (First, Whole):
            made = kind.__init__

            def making(model, *given, made=made) -> None:
                made(model, *given)
                note(model)

            monkeypatch.setattr(kind, "__init__", making)
        is_exact, exact_rows = tuning.is_exact, tuning.exact_rows
        monkeypatch.setattr(tuning, "first_layers", lambda folder, light_bytes: 4)
        monkeypatch.setattr(tuning, "FirstLayers", First)
        monkeypatch.setattr(tuning, "PagedModel", Whole)

        def breaks(model) -> bool:
            return not model.is_first and inexact_whole in model.traits

        monkeypatch.setattr(tuning, "is_exact", lambda model, *given: not breaks(model) and is_exact(model, *given))
        monkeypatch.setattr(
            tuning, "exact_rows", lambda model, *given: None if breaks(model) else exact_rows(model, *given)
        )
