"""The best possible schedule is what trying all schedules finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.app.bench.schedule import Foresight, best_ms, run_ms
from outrider.pipelines.speculation.draft_cost import DraftCost

BEGINNERS = ("head", "layer_skipping")


@dataclass(frozen=True)
class Cost:
    base: float
    row: float
    attention: float
    model: DraftCost = field(default_factory=lambda: DraftCost(0.0))
    head: DraftCost = field(default_factory=lambda: DraftCost(0.0))
    itself: DraftCost = field(default_factory=lambda: DraftCost(0.0))

    def of_draft(self, name: str) -> DraftCost:
        return {"draft_model": self.model, "head": self.head, "layer_skipping": self.itself}[name]

    def pass_ms(self, windows) -> float:
        return sum(self.base + self.row * max(rows, 2) + self.attention * context * rows for rows, context in windows)


def costs(base: float, row: float, attention: float, draft: float) -> st.SearchStrategy[Cost]:
    """Any up to these."""
    any_draft = st.builds(DraftCost, *[st.floats(0, draft)] * 2, begin_ms=st.floats(0, draft))
    return st.builds(Cost, st.floats(0, base), st.floats(0, row), st.floats(0, attention), *[any_draft] * 3)


any_costs, cheap_drafts = costs(10, 10, 10, 10), costs(20, 0.5, 0.1, 0.5)


@st.composite
def foresights(draw) -> Foresight:
    by_model = draw(st.lists(st.sampled_from([True, True, False]), min_size=1, max_size=6))
    from_text, *from_start = (
        tuple(draw(st.integers(0, min(2, len(by_model) - at))) for at in range(len(by_model))) for _ in range(3)
    )
    beginners = dict(zip(draw(st.permutations(BEGINNERS)), from_start, strict=True))
    present = {name: beginners[name] for name in beginners if draw(st.booleans())}
    return Foresight(draw(st.integers(1, 5)), from_text, tuple(by_model), present)


def every_schedule(foresight: Foresight, cost: Cost, longest: int) -> float:
    """The least over all ways to cut the answer into passes, following token by token what the model was fed."""
    model = cost.of_draft("draft_model")
    length, prompt = len(foresight.by_model), foresight.num_prompt_tokens

    def drafts(at: int, begins: bool = False) -> Iterator[tuple[str, ...]]:
        """Every right draft from here, as who proposes each token; the text may be asked anew anywhere, a head and
        the target itself only where the draft begins."""
        yield ()
        for name, num_right in foresight.from_start.items() if begins and at < length else ():
            for run in range(1, num_right[at] + 1):
                yield from ((name,) * run + rest for rest in drafts(at + run))
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
            for beginner in {*draft} & {*BEGINNERS}:
                took += cost.of_draft(beginner).begin_ms + draft.count(beginner) * cost.of_draft(beginner).token_ms
            for depth, source in enumerate(draft):
                if source == "model":
                    behind = known + depth - held
                    took += model.token_ms + model.row_ms * (behind - 1)
                    held += behind
            found.append(took + least(written + len(draft) + 1, held))
        return min(found)

    return least(1, 0)


@settings(max_examples=300)
@given(foresights(), any_costs | cheap_drafts, st.integers(0, 4))
def test_no_schedule_is_better(foresight: Foresight, cost: Cost, longest: int) -> None:
    assert best_ms(foresight, cost, longest) == pytest.approx(every_schedule(foresight, cost, longest), abs=1e-6)


def test_without_foresight_it_is_plain_decoding() -> None:
    cost = Cost(3, 1, 0, DraftCost(1, 1))
    nothing = Foresight(4, (0,) * 6, (False,) * 6)
    assert best_ms(nothing, cost) == pytest.approx(run_ms([(1, 4 + at) for at in range(5)], 0.0, cost)) == 5 * 5


def test_a_draft_that_costs_more_than_it_brings_is_left_out() -> None:
    foresight = Foresight(4, (0,) * 6, (True,) * 6)
    assert best_ms(foresight, Cost(3, 1, 0, DraftCost(100))) == pytest.approx(5 * 5)
    assert best_ms(foresight, Cost(3, 1, 0, DraftCost(0.5))) == pytest.approx(3 + 5 + 4 * 0.5)


def test_an_answer_of_one_token_takes_no_time_after_the_first() -> None:
    assert best_ms(Foresight(3, (0,), (True,)), Cost(1, 1, 1, DraftCost(1, 1))) == 0.0


def test_the_text_goes_on_where_the_model_has_mended_it() -> None:
    foresight = Foresight(4, (0, 0, 2, 1, 0), (False, True, False, False, False))
    assert best_ms(foresight, Cost(10, 0, 0, DraftCost(1, 0.1))) == pytest.approx(10 + 4 * 0.1 + 1)


@pytest.mark.parametrize("name", BEGINNERS)
def test_a_head_or_the_target_writes_what_is_worth_its_time_and_the_text_goes_on(name: str) -> None:
    foresight = Foresight(4, (0, 0, 0, 2, 1, 0), (False,) * 6, {name: (0, 2, 0, 0, 0, 0)})
    draft = DraftCost(0.5, begin_ms=0.25)
    assert best_ms(foresight, Cost(10, 0, 0, head=draft, itself=draft)) == pytest.approx(10 + 0.25 + 2 * 0.5)
    assert best_ms(foresight, Cost(10, 0, 0, head=DraftCost(50), itself=DraftCost(50))) == pytest.approx(3 * 10)


def test_the_better_of_a_head_and_the_target_begins() -> None:
    foresight = Foresight(4, (0,) * 6, (False,) * 6, {"head": (0, 4, 0, 0, 0, 0), "layer_skipping": (0, 2, 0, 0, 0, 0)})
    dear = Cost(10, 0, 0, head=DraftCost(9), itself=DraftCost(1))
    assert best_ms(foresight, dear) == pytest.approx(10 + 2 * 1 + 2 * 10)
    assert best_ms(foresight, replace(dear, head=DraftCost(1))) == pytest.approx(10 + 4 * 1)
