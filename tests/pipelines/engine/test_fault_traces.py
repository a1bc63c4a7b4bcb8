"""Traces of requests that begin, wait, are cancelled and break, at random: what breaks one request is that one's error.

Every other is answered as it is alone, and in the end no block is held.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.pipelines.config import MODES
from outrider.pipelines.engine import scheduler as scheduler_module
from outrider.pipelines.engine.block_pool import BlockPool
from outrider.pipelines.engine.request import Request
from outrider.pipelines.errors import BrokenLogits
from outrider.pipelines.speculation.drafters.base import Drafter
from outrider.pipelines.speculation.drafters.head import Head
from outrider.pipelines.text.tokenizer import TextStream

from ..fakes import (
    BLOCK_SIZE,
    VOCABULARY,
    FakeHead,
    FakeSplit,
    FakeTokenizer,
    Row,
    Rule,
    fake_engine,
    mixed_rule,
    new_request,
    random_rule,
)
from ..serving import RULE, SAMPLED, TOKENS, drafters, plain

PIECES = [bytes([97 + token]) for token in range(VOCABULARY)]
SITES = ("logits", "open", "grow", "follow", "next_block", "publish", "text", "form")
READERS = ("head", "recycling")  # drafters that break as they read the results of a pass
NUM_BLOCKS = 10  # few, so that requests have to give way to each other


class Planted(Exception):
    """What a test lets break."""


@dataclass
class Fault:
    """Raises, or spoils logits, at the `number`-th call at `site` for one request."""

    site: str
    number: int
    calls: Counter[str] = field(default_factory=Counter)
    happened: bool = False

    def __call__(self, site: str) -> bool:
        self.calls[site] += 1
        if site != self.site or self.calls[site] != self.number:
            return False
        self.happened = True
        return True

    def strike(self, site: str) -> None:
        if self(site):
            raise Planted(site)


class BreakingText(TextStream):
    def __init__(self, fault: Fault) -> None:
        super().__init__(FakeTokenizer(PIECES))  # type: ignore[arg-type]
        self._fault = fault

    def extend(self, tokens: Sequence[int], sources: Sequence[str]) -> int:
        self._fault.strike("text")
        return super().extend(tokens, sources)


class BreakingForm:
    """Allows everything, until it breaks where the target asks."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def allowed(self, answer: Sequence[int]) -> Any:
        self._fault.strike("form")
        return np.ones(VOCABULARY, np.bool_)

    def allows(self, answer: Sequence[int], token: int) -> bool:
        return True

    def is_complete(self, answer: Sequence[int]) -> bool:
        return False

    def forced(self, answer: Sequence[int]) -> int | None:
        return None


class Trace:
    """Requests that begin with tokens of their own are told apart by them, also by the model."""

    def __init__(self, num_drafters: int) -> None:
        self.faults: dict[tuple[int, ...], Fault] = {}
        self.made: list[tuple[Request, Fault | None]] = []
        self.cancelled: list[Request] = []
        self.passes_to_break = 0
        self.broken: list[Request] = []
        self.model = FakeSplit(self._rule(RULE), RULE, NUM_BLOCKS)
        self.model.before_pass = self._before_pass
        some_drafters, self.draft_pool = drafters(num_drafters, NUM_BLOCKS)
        self.head_pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
        head = FakeHead(self.model.texts, mixed_rule(RULE, random_rule(9), 0.3))
        some_drafters["head"] = Head(head, self.head_pool, VOCABULARY)
        self.engine, self.pool = fake_engine(self.model, some_drafters)

    def begin(self, prompt: Sequence[int], num_new: int, fault: Fault | None, **options: Any) -> None:
        number = len(self.made)
        head = (number // VOCABULARY % VOCABULARY, number % VOCABULARY)
        request = new_request([*head, *prompt], num_new, **options)
        if fault is not None:
            self.faults[head] = fault
            request.text = BreakingText(fault)
            if fault.site == "form":
                request.constraint = BreakingForm(fault)  # type: ignore[assignment]
        self.made.append((request, fault))
        self.engine.add(request)

    def cancel(self, choice: int) -> None:
        if self.made:
            self.cancelled.append(self.made[choice % len(self.made)][0])
            self.engine.cancel(self.cancelled[-1])

    def _rule(self, rule: Rule) -> Rule:
        def broken(prefix: Sequence[int]) -> Row:
            fault, logits = self.faults.get(tuple(prefix[:2])), rule(prefix)
            if fault is not None and fault("logits"):
                logits = logits.copy()
                logits[:] = math.nan
            return logits

        return broken

    def _before_pass(self, windows: Sequence[Any]) -> None:
        if self.passes_to_break:
            self.passes_to_break -= 1
            self.broken += self.engine._scheduler.running
            raise Planted("pass")

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the allocator and the readers break for the requests that are meant to."""

        def of(table: Any) -> Fault | None:
            return next((fault for request, fault in self.made if request.table is table), None)

        def breaking(site: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(first: Any, *others: Any) -> Any:
                fault = self.faults.get(tuple(first[:2])) if site == "open" else of(first)
                if fault is not None:
                    fault.strike(site)
                return real(first, *others)

            return call

        for site in ("open", "grow", "follow", "next_block", "publish"):
            monkeypatch.setattr(self.pool, site, breaking(site, getattr(self.pool, site)))

        drafter_set = self.engine._planner._drafters
        hand_on = drafter_set._hand_on

        def hand_on_to(drafter: Drafter, request: Request, read: Callable[..., None], *results: Any) -> None:
            def breaking_read(*results: Any) -> None:
                if (fault := self.faults.get(tuple(request.tokens[:2]))) is not None:
                    fault.strike(drafter.name)
                read(*results)

            hand_on(drafter, request, breaking_read, *results)

        monkeypatch.setattr(drafter_set, "_hand_on", hand_on_to)

    def check(self) -> None:
        for request, fault in self.made:
            if fault is not None and fault.happened and fault.site in READERS:
                assert not isinstance(request.error, Planted) or request in self.broken
                assert fault.calls[fault.site] == fault.number, "it is not left out"
            answer = plain(request)
            if isinstance(request.error, Planted) and str(request.error) == "pass":
                assert request in self.broken
            elif request.error is not None:
                assert fault is not None
                assert fault.happened
                assert isinstance(request.error, BrokenLogits if fault.site == "logits" else Planted)
            elif request.finish_reason == "cancelled":
                assert request in self.cancelled
            else:
                # A row after a rejected draft tells nothing, and a drafter that breaks is left out.
                assert fault is None or not fault.happened or fault.site in ("logits", "form", *READERS)
                assert (request.new_tokens, request.finish_reason) == (answer.token_ids, answer.finish_reason)
                continue
            assert request.new_tokens == answer.token_ids[: request.num_new]
        assert [pool.num_free for pool in (self.pool, self.draft_pool, self.head_pool)] == [NUM_BLOCKS] * 3
        assert (self.engine.load.running, self.engine.load.waiting) == (0, 0)


FAULTS = st.builds(Fault, st.sampled_from([*SITES, *READERS]), st.integers(1, 8))
BEGIN = st.fixed_dictionaries({
    "prompt": st.lists(TOKENS, max_size=14), "num_new": st.integers(1, 20), "fault": st.none() | FAULTS,
    "mode": st.sampled_from(MODES), "num_assistant_tokens": st.none() | st.integers(1, 8),
    "stop_token_ids": st.sets(TOKENS, max_size=1),
    "sampled": st.sampled_from([{}, SAMPLED]),
})  # fmt: skip
ACTIONS = st.one_of(
    st.tuples(st.just("begin"), BEGIN),
    st.tuples(st.just("batch"), st.lists(BEGIN, min_size=2, max_size=4)),
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.just("cancel"), st.integers(0, 99)),
    st.tuples(st.just("break a pass"), st.just(1)),
)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(ACTIONS, min_size=1, max_size=14), st.integers(0, 3))
def test_what_breaks_one_request_is_that_ones_error_and_no_others(actions, num_drafters):
    trace = Trace(num_drafters)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(scheduler_module, "PREFILL_ROWS", 5)
        trace.patch(monkeypatch)
        for name, what in actions:
            for begun in {"begin": [what], "batch": what}.get(name, []):
                options = {key: value for key, value in begun.items() if key not in ("sampled", "fault")}
                fault = begun["fault"] and Fault(begun["fault"].site, begun["fault"].number)
                trace.begin(**options, **begun["sampled"], fault=fault)
            for _ in range(what if name == "step" else 0):
                trace.engine.step()
            if name == "cancel":
                trace.cancel(what)
            elif name == "break a pass":
                trace.passes_to_break = 1
        for _ in range(3000):
            if all(request.finished for request, _ in trace.made):
                break
            trace.engine.step()
    trace.check()


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("site", SITES)
def test_a_fault_at_any_place_ends_one_of_three(site, number, monkeypatch):
    trace = Trace(0)
    trace.patch(monkeypatch)
    for fault in (None, Fault(site, number), None):
        trace.begin([3, 1, 4, 1, 5], 12, fault, mode="chained", num_assistant_tokens=3)
    for _ in range(200):
        trace.engine.step()
    trace.check()
    assert not any(trace.made[place][0].error for place in (0, 2))
    assert trace.made[1][0].error or number > 1, "nothing broke"


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("site", READERS)
def test_a_drafter_that_breaks_as_it_reads_is_left_out_of_that_answer_only(site, number, monkeypatch, caplog):
    """And the answer is the same."""
    trace, faults = Trace(0), [Fault(site, 0), Fault(site, number), Fault(site, 0)]
    trace.patch(monkeypatch)
    for fault in faults:
        trace.begin([3, 1, 4, 1, 5], 12, fault, mode="chained", num_assistant_tokens=3)
    for _ in range(200):
        trace.engine.step()
    trace.check()
    assert not any(request.error for request, _ in trace.made)
    assert faults[1].happened
    assert all(fault.calls[site] > number for fault in (faults[0], faults[2]))
    assert caplog.text.count(f"The drafter {site} failed") == 1
