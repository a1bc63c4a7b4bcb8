"""The best possible schedule is what trying all schedules finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.app.bench.schedule import Foresight, best_ms, run_ms


@dataclass(frozen=True)
class Cost:
    base: float
    row: float
    attention: float
    draft_ms: float
    draft_row_ms: float
    head_ms: float
    head_begin_ms: float

    def pass_ms(self, windows) -> float:
        return sum(self.base + self.row * max(rows, 2) + self.attention * context * rows for rows, context in windows)


any_costs = st.builds(Cost, *[st.floats(0, 10)] * 7)
cheap_drafts = st.builds(Cost, *[st.floats(0, high) for high in (20, 0.5, 0.1, 0.5, 0.5, 0.5, 0.5)])


@st.composite
def foresights(draw) -> Foresight:
    by_model = draw(st.lists(st.sampled_from([True, True, False]), min_size=1, max_size=6))
    from_text, by_head = (
        [draw(st.integers(0, min(2, len(by_model) - at))) for at in range(len(by_model))] for _ in range(2)
    )
    return Foresight(draw(st.integers(1, 5)), tuple(from_text), tuple(by_model), tuple(by_head))


def every_schedule(foresight: Foresight, cost: Cost, longest: int) -> float:
    """The least over all ways to cut the answer into passes, following token by token what the model was fed."""
    length, prompt = len(foresight.by_model), foresight.num_prompt_tokens

    def drafts(at: int, begins: bool = False) -> Iterator[tuple[str, ...]]:
        """Every right draft from here, as who proposes each token; the text may be asked anew anywhere, the head only
        where the draft begins."""
        yield ()
        if begins and at < length:
            for run in range(1, foresight.by_head[at] + 1):
                yield from (("head",) * run + rest for rest in drafts(at + run))
        for run in range(1, foresight.from_text[at] + 1 if at < length else 1):
            yield from (("text",) * run + rest for rest in drafts(at + run))
        if at < length and foresight.by_model[at]:
            yield from (("model", *rest) for rest in drafts(at + 1))

    def least(written: int, fed: int) -> float:
        if written == length:
            return 0.0
        known = prompt + written
        found = []
        for draft in set(drafts(written, begins=True)):
            if len(draft) > longest or written + len(draft) >= length:
                continue
            took, held = cost.pass_ms([(1 + len(draft), known - 1)]), fed
            if "head" in draft:
                took += cost.head_begin_ms + draft.count("head") * cost.head_ms
            for depth, source in enumerate(draft):
                if source == "model":
                    behind = known + depth - held
                    took += cost.draft_ms + cost.draft_row_ms * (behind - 1)
                    held += behind
            found.append(took + least(written + len(draft) + 1, held))
        return min(found)

    return least(1, 0)


@settings(max_examples=300)
@given(foresights(), any_costs | cheap_drafts, st.integers(0, 4))
def test_no_schedule_is_better(foresight: Foresight, cost: Cost, longest: int) -> None:
    assert best_ms(foresight, cost, longest) == pytest.approx(every_schedule(foresight, cost, longest), abs=1e-6)


def test_without_foresight_it_is_plain_decoding() -> None:
    cost = Cost(3, 1, 0, 1, 1, 1, 1)
    nothing = Foresight(4, (0,) * 6, (False,) * 6, (0,) * 6)
    assert best_ms(nothing, cost) == pytest.approx(run_ms([(1, 4 + at) for at in range(5)], 0.0, cost)) == 5 * 5


def test_a_draft_that_costs_more_than_it_brings_is_left_out() -> None:
    foresight = Foresight(4, (0,) * 6, (True,) * 6, (0,) * 6)
    assert best_ms(foresight, Cost(3, 1, 0, 100, 0, 100, 0)) == pytest.approx(5 * 5)
    assert best_ms(foresight, Cost(3, 1, 0, 0.5, 0, 0.5, 0)) == pytest.approx(3 + 5 + 4 * 0.5)


def test_an_answer_of_one_token_takes_no_time_after_the_first() -> None:
    assert best_ms(Foresight(3, (0,), (True,), (0,)), Cost(1, 1, 1, 1, 1, 1, 1)) == 0.0


def test_the_text_goes_on_where_the_model_has_mended_it() -> None:
    foresight = Foresight(4, (0, 0, 2, 1, 0), (False, True, False, False, False), (0,) * 5)
    assert best_ms(foresight, Cost(10, 0, 0, 1, 0.1, 1, 1)) == pytest.approx(10 + 4 * 0.1 + 1)


def test_the_head_writes_what_is_worth_its_time_and_the_text_goes_on() -> None:
    foresight = Foresight(4, (0, 0, 0, 2, 1, 0), (False,) * 6, (0, 2, 0, 0, 0, 0))
    assert best_ms(foresight, Cost(10, 0, 0, 1, 1, 0.5, 0.25)) == pytest.approx(10 + 0.25 + 2 * 0.5)
    assert best_ms(foresight, Cost(10, 0, 0, 1, 1, 50, 0)) == pytest.approx(3 * 10)
