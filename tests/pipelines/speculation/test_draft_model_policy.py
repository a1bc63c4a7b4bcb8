"""When the draft model is asked, and for what: only where its time is expected to pay."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from outrider.pipelines.speculation.acceptance import GREEDY
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft import Draft
from outrider.pipelines.speculation.draft_cost import DraftCost
from outrider.pipelines.speculation.expected_acceptance import Expected

from ..fakes import new_request
from .odds import Behind, Clock, Odds, OddsDrafter, OddsHead, OddsModel, Remembering
from .planning import answer, cost_of, draft_of, planner_of


class Scoring(OddsModel):
    """Notes the lengths of the drafts that it scores."""

    def __init__(self, name, odds):
        super().__init__(name, odds)
        self.lengths = []

    def score(self, wanted):
        self.lengths.extend(len(ahead) for _, ahead in wanted)
        return super().score(wanted)


@pytest.mark.parametrize(
    ("mode", "text", "model", "expected"),
    [
        ("auto", [0.95, 0.9], [0.05] * 9, ["suffix", "suffix"]),
        ("auto", [0.99, 0.99], [0.99] * 9, ["suffix", "suffix", *["draft_model"] * 7]),
        ("auto", [0.02], [0.99] * 9, ["draft_model"] * 9),
        ("chained", [0.02], [0.99] * 9, ["suffix"]),
        ("auto", [], [0.99] * 9, ["draft_model"] * 9),
        ("suffix", [0.9, 0.9], [0.99] * 9, ["suffix", "suffix"]),
        ("off", [0.9], [0.9], []),
    ],
)
def test_who_drafts_is_who_is_worth_most(mode, text, model, expected):
    draft = draft_of(mode=mode)
    drafters = OddsDrafter("suffix", {draft.request: text}), OddsModel("draft_model", {draft.request: model})
    planner = planner_of(cost_of([10, 10.5, 11, 11.5, 12, 20], draft_ms=0.8), *drafters)
    planner._policies[0].expected.known["auto", GREEDY] = Expected(*[0.8 if model[0] > 0.9 else 0.05] * 2)
    planner.draft([draft])
    assert draft.sources == expected


@pytest.mark.parametrize(("begin_ms", "num_drafted"), [(0.0, 9), (4.0, 9), (60.0, 0)])
def test_beginning_a_draft_is_paid_for_once_and_only_where_all_of_the_draft_is_worth_it(begin_ms, num_drafted):
    draft = draft_of()
    model = OddsModel("draft_model", {draft.request: [0.95] * 9})
    cost = cost_of([10, 10.5, 11, 11.5, 12, 20], draft_ms=0.1)
    cost.drafts["draft_model"].begin_ms = begin_ms
    planner_of(cost, OddsDrafter("suffix", {draft.request: []}), model).draft([draft])
    assert len(draft.proposals) == num_drafted
    assert draft.draft_ms == pytest.approx(num_drafted and begin_ms + 0.1 * model.num_passes, rel=0.02)


@pytest.mark.parametrize("is_head", [False, True])
def test_a_draft_is_charged_what_its_model_takes_with_what_it_has_to_read_before(is_head):
    """A draft model reads the draft of the texts in one pass, a head takes a pass for each token of it."""
    draft = draft_of(mode="chained")
    draft.limit, odds = 5, {draft.request: [0.99] * 9}
    model = OddsHead(odds, Clock(), missed=4) if is_head else Remembering("draft_model", odds, missed=4)
    costs = {model.name: DraftCost(0.5, 0.1, begin_ms=1.5)}
    cost = replace(cost_of([10, 10.5, 11, 11.5, 12, 20]), drafts=costs)
    planner_of(cost, OddsDrafter("suffix", {draft.request: [0.99] * 2}), model).draft([draft])
    assert draft.sources == [*["suffix"] * 2, *[model.name] * 3]
    read_ms = 4 * 0.1 + 2 * (0.5 if is_head else 0.1)
    assert draft.draft_ms == pytest.approx(1.5 + read_ms + 3 * 0.5)
    assert draft.draft_ms == pytest.approx(1e3 * model.clock_s)


@pytest.mark.parametrize(("depth", "text", "drafted"), [(2, [], 2), (1, [], 1), (3, [0.99] * 2, 3), (2, [0.99] * 2, 2)])
def test_a_model_is_not_asked_beyond_its_depth(depth, text, drafted):
    draft = draft_of(mode="chained")
    model = OddsModel("draft_model", {draft.request: [0.99] * 9})
    model.depth = depth
    planner = planner_of(
        cost_of([10, 10.5, 11, 11.5, 12, 20], draft_ms=0.8), OddsDrafter("suffix", {draft.request: text}), model
    )
    planner.draft([draft])
    assert draft.sources == [*["suffix"] * len(text), *["draft_model"] * (drafted - len(text))]
    assert model.num_passes == drafted - len(text)
    assert planner._policies[0]._backoffs == {}


class Noting(Odds):
    def __init__(self) -> None:
        self.seen: list[tuple[str, float, bool]] = []

    def observe(self, features, accepted, conditions):
        self.seen.append((features.kind, features.values[0], accepted))


@pytest.mark.parametrize(("kept", "known"), [([7, 7, 7, 7], 3), ([7, 7, 5], 3), ([7, 5], 2), ([5], 1)])
def test_proposals_that_were_not_worth_a_row_are_compared_with_the_answer_too(kept, known):
    draft, odds = draft_of(), [0.9, 0.85, 0.1]
    model = OddsModel("draft_model", {draft.request: [*odds, 0.9]})
    planner = planner_of(cost_of([10, 12, 14, 18, 24, 60], 1.0), OddsDrafter("suffix", {draft.request: []}), model)
    planner._acceptance = noting = Noting()
    planner.draft([draft])
    assert draft.tokens == [7, 7]
    planner.observe([draft], [kept], None)
    assert noting.seen == [("draft_model", each, token == 7) for each, token in zip(odds[:known], kept, strict=False)]


@pytest.mark.parametrize(("kept", "known"), [([7, 7, 5], 3), ([7, 7, 7], 3), ([7, 5], 2), ([5], 1)])
def test_scored_proposals_that_were_not_worth_a_row_are_compared_with_the_answer_too(kept, known):
    draft = draft_of()
    text = OddsDrafter("suffix", {draft.request: [0.8] * 8})
    model = OddsModel("draft_model", {draft.request: [0.9, 0.9, 0.1, 0.9, 0.9]})
    planner = planner_of(cost_of([10, 12, 30, 31, 32, 33], draft_ms=0.1), text, model)
    planner._acceptance = noting = Noting()
    planner.draft([draft])
    assert draft.tokens == [7, 7], "the third is mended, and it and what comes after it are not worth their rows"
    planner.observe([draft], [kept], None)
    scored = [(kind, kept) for kind, _, kept in noting.seen if kind in ("agreed", "mended")]
    expected = zip(("agreed", "agreed", "mended"), (7, 7, 5), kept, strict=False)
    assert scored == [(kind, token == of_answer) for kind, token, of_answer in expected][:known]


@pytest.mark.parametrize("most", [60, 24.5])
def test_the_draft_model_stops_when_its_own_odds_fall(most):
    """And the last token is left out, though elsewhere rows may be so cheap that it would pay."""
    draft = draft_of()
    model = OddsModel("draft_model", {draft.request: [0.9, 0.9, 0.1, 0.9]})
    none = OddsDrafter("suffix", {draft.request: []})
    planner_of(cost_of([10, 12, 14, 18, 24, most], draft_ms=1.0), none, model).draft([draft])
    assert draft.tokens == [7, 7]
    assert model.num_taken == 3, "it wrote on after a token that was not worth its row"


@pytest.mark.parametrize(("num_written", "reads"), [(0, False), (3000, True)])
def test_the_draft_model_catches_up_only_where_that_is_little_beside_the_answers_own_time(num_written, reads):
    """However long the prompt was."""
    draft = Draft(new_request([1] * 4000, 99, mode="auto", num_assistant_tokens=None), 3999, 32)
    cost = cost_of([10, 12, 14, 18, 24, 60], draft_ms=0.1)
    cost.drafts["draft_model"].row_ms = 0.05
    model = Behind("draft_model", {draft.request: [0.99] * 32}, 1000)
    planner = planner_of(cost, OddsDrafter("suffix", {draft.request: []}), model)
    planner._policies[0].expected.known["auto", GREEDY] = Expected(0.99, 0.99)
    plain_ms = cost.pass_ms([(1, draft.context)])
    for _ in range(num_written):
        planner._budget(cost, draft, [draft], plain_ms).passed(1, plain_ms, 0.0)
    planner.draft([draft])
    assert (model.num_passes > 0) == reads


def test_feeding_a_model_that_pays_in_the_end_is_no_reason_to_ask_it_less_often():
    """It costs the pass in which it is done more than that gains."""

    class Pondering(Behind):
        def num_behind(self, request, ahead=()):
            clock.now += 0.0 if ahead else 2e-4
            return super().num_behind(request, ahead)

    clock, text, model = Clock(), OddsDrafter("suffix", {}), Pondering("draft_model", {}, 0)
    cost = cost_of([10, 10.5, 11, 11.5, 12, 20], draft_ms=0.5)
    cost.drafts["draft_model"].row_ms = 0.1
    planner = planner_of(cost, text, model, clock=clock)
    for _ in range(30):
        draft, unasked = draft_of(), 0
        text.odds[draft.request], model.odds[draft.request], model.missed = [], [0.4] * 8, 200
        for _ in range(40):
            answer(planner, draft)
            unasked += not draft.proposals
        planner.release(draft.request)
        assert unasked < 12


@pytest.mark.parametrize(("estimate", "text", "first"), [(0.9, 0, range(1, 8)), (0.05, 0, ()), (0.9, 1, ())])
def test_a_draft_model_is_fed_once_it_would_have_brought_as_much_as_that_takes(estimate, text, first):
    """Not at once, as the answer may end; and not at all where it would have brought nothing, or texts offer more."""
    draft = draft_of(mode="chained")
    cost = cost_of([10, 12, 14, 18, 24, 60], draft_ms=1.0)
    cost.drafts["draft_model"].row_ms = 0.1
    model = Behind("draft_model", {draft.request: [estimate] * 32}, 250)
    planner = planner_of(cost, OddsDrafter("suffix", {draft.request: [0.9] * text}), model)
    planner._policies[0].expected.known["chained", GREEDY] = Expected(estimate, estimate)
    asked = []
    for n in range(20):
        draft.cut(0)
        draft.draft_ms = 0.0
        planner.draft([draft])
        if model.num_passes:
            asked.append(n)
            break
        planner.observe([draft], [[3]], None)
    assert len(asked) == bool(first)
    assert set(asked) <= set(first)


def test_several_sequences_share_the_passes_of_the_draft_model():
    drafts = [draft_of() for _ in range(4)]
    model = OddsModel("draft_model", {draft.request: [0.9] * (i + 1) for i, draft in enumerate(drafts)})
    text = OddsDrafter("suffix", {draft.request: [] for draft in drafts})
    planner_of(cost_of([10, 10.5, 11, 11.5, 12, 20], draft_ms=1.0), text, model).draft(drafts)
    assert [len(draft.proposals) for draft in drafts] == [1, 2, 3, 4]
    assert model.num_passes <= 5
    assert len({round(draft.draft_ms, 9) for draft in drafts}) > 1


def test_a_doubtful_copy_is_scored_by_the_draft_model_and_mended_where_it_breaks():
    draft = draft_of()
    text = OddsDrafter("suffix", {draft.request: [0.8] * 8})
    model = OddsModel("draft_model", {draft.request: [0.9, 0.9, 0.1, 0.9, 0.9]})
    planner = planner_of(cost_of([10, 12, 14, 18, 24, 60], draft_ms=0.5), text, model)
    planner.draft([draft])
    assert draft.tokens[:3] == [7, 7, 5], "the third token is not the draft model's"
    assert draft.sources[:3] == ["suffix", "suffix", "draft_model"]
    assert draft.probabilities[:3] == pytest.approx([0.97, 0.97**2, 0.97**2 * 0.8])
    assert draft.draft_ms >= 0.5


def test_a_copy_that_was_scored_is_kept_as_far_as_its_rows_pay():
    draft = draft_of()
    text = OddsDrafter("suffix", {draft.request: [0.8] * 8})
    model = OddsModel("draft_model", {draft.request: [0.9] * 9})
    planner_of(cost_of([10, 12, 14, 18, 42, 42.3], draft_ms=0.1), text, model).draft([draft])
    assert draft.draft_ms > 0
    assert draft.sources == ["suffix"] * 5, "a row of the sixth and the next two takes nearly as long as a pass"


@pytest.mark.parametrize(("draft_row_ms", "num_scored"), [(0.0, 10), (0.6, 2)])
def test_a_copy_is_scored_only_as_far_as_that_pays(draft_row_ms, num_scored):
    """Only its doubtful beginning, where scoring is expensive; what comes after it is taken all the same."""
    draft = draft_of()
    text = OddsDrafter("suffix", {draft.request: [0.8, 0.8, *[0.99] * 8]})
    model = Scoring("draft_model", {draft.request: [0.9] * 10})
    cost = cost_of([10, 12, 14, 18, 20, 24], draft_ms=0.5)
    cost.drafts["draft_model"].row_ms = draft_row_ms
    planner = planner_of(cost, text, model)
    planner._policies[0].expected.known["auto", GREEDY] = Expected(0.5, 0.5)
    planner.draft([draft])
    assert model.lengths == [num_scored]
    assert draft.sources[:10] == ["suffix"] * 10


@pytest.mark.parametrize(("budget_ms", "is_scored"), [(2.0, True), (1.5, False)])
def test_a_copy_is_not_scored_where_the_budget_does_not_allow_feeding_it(budget_ms, is_scored):
    """Though one pass of the draft model would be allowed, and scoring would pay."""
    draft = draft_of()
    text = OddsDrafter("suffix", {draft.request: [0.5] * 8})
    cost = cost_of([10, 10.01, 10.02, 10.03, 10.04, 10.1], draft_ms=1.0)
    cost.drafts["draft_model"].row_ms = 0.2
    model = Scoring("draft_model", {draft.request: [0.9] * 10})
    planner = planner_of(cost, text, model)
    budget = planner._budget(cost, draft, [draft], cost.pass_ms([(1, draft.context)]))
    budget.lost_ms += budget.remaining_ms - budget_ms
    planner.draft([draft])
    assert bool(model.lengths) == is_scored
    assert draft.draft_ms <= budget_ms


@pytest.mark.parametrize(
    ("mode", "sure", "draft_ms"), [("chained", 0.8, 0.5), ("auto", 0.999, 0.5), ("auto", 0.8, 50.0)]
)
def test_a_copy_is_not_scored_where_nobody_asked_or_it_would_not_pay(mode, sure, draft_ms):
    draft = draft_of(mode=mode)
    text = OddsDrafter("suffix", {draft.request: [sure] * 3})
    model = OddsModel("draft_model", {draft.request: [0.9, 0.1]})
    planner = planner_of(cost_of([10, 10.2, 10.4, 11, 12, 20], draft_ms=draft_ms), text, model)
    planner._policies[0].expected.known["auto", GREEDY] = Expected(0.1, 0.1)
    planner.draft([draft])
    assert draft.tokens == [7] * 3
    assert set(draft.sources) == {"suffix"}


def dear_first() -> CostModel:
    """Of passes in which the second row takes as long as the first, and the next ones little."""
    base_ms = (10.0, 20.0, 21.0, 22.0, 24.0, 50.0)
    return CostModel((1, 2, 3, 4, 6, 33), base_ms, (0.0,) * 6, {"draft_model": DraftCost(1.0)})


@pytest.mark.parametrize("missed", [0, 20])
def test_a_draft_model_is_not_asked_where_no_draft_of_it_can_be_afforded(missed):
    """The first row of a draft takes nearly a pass, and what may be lost is less, though the model itself is cheap."""
    draft = draft_of()
    cost = dear_first()
    cost.drafts["draft_model"].row_ms = 0.1
    model = Behind("draft_model", {draft.request: [0.95] * 32}, missed)
    planner = planner_of(cost, OddsDrafter("suffix", {draft.request: []}), model)
    budget = planner._budget(cost, draft, [draft], 10.0)
    budget.lost_ms += budget.remaining_ms - 9.0
    planner.draft([draft])
    assert model.num_passes == 0
    assert draft.draft_ms == 0.0
    budget.lost_ms -= 100.0
    planner.draft([draft])
    assert len(draft.proposals) > 3


@pytest.mark.parametrize("estimate", [0.8, 0.9, 0.99])
def test_a_draft_model_that_pays_only_if_it_is_good_is_found_out(estimate):
    """With even odds it would not: a draft of any length takes the time of more tokens than it would bring."""
    draft = draft_of()
    model = OddsModel("draft_model", {draft.request: [estimate] * 32})
    planner = planner_of(dear_first(), OddsDrafter("suffix", {draft.request: []}), model)
    for _ in range(20):
        answer(planner, draft)
    assert model.num_passes > 20


class Full(OddsModel):
    """Has no room for its first `num_full` passes."""

    def __init__(self, name, odds, num_full):
        super().__init__(name, odds)
        self.num_full = num_full
        self.num_refused = 0

    def score(self, wanted):
        return self._unless_full(wanted) or super().score(wanted)

    def generate(self, wanted):
        return self._unless_full(wanted) or super().generate(wanted)

    def _unless_full(self, wanted):
        if self.num_full <= 0:
            return None
        self.num_refused += 1
        return [None] * len(wanted)


@pytest.mark.parametrize("num_full", [1, 2, 7, 100])
def test_a_draft_model_that_is_full_leaves_the_copy_as_it_was_and_is_asked_again_when_there_may_be_room(num_full):
    draft = draft_of()
    text = OddsDrafter("suffix", {draft.request: [0.8] * 8})
    model = Full("draft_model", {draft.request: [0.9] * 40}, num_full)
    planner = planner_of(cost_of([10, 12, 14, 18, 24, 60], 0.5), text, model)
    num_without = 0
    while not model.num_passes:
        assert num_without <= 2 * num_full
        draft.cut(0)
        draft.draft_ms = 0.0
        planner.draft([draft])
        if not model.num_passes:
            assert draft.tokens
            assert set(draft.sources) == {"suffix"}
            num_without += 1
            model.num_full -= 1
    assert num_without >= num_full
    assert model.num_refused <= 1 + math.log2(1 + num_full)
    assert planner._policies[0]._backoffs == {}, "the next time it waits for one pass"


def test_a_draft_model_without_room_for_good_is_hardly_ever_asked_and_forgotten_with_the_answer():
    draft = draft_of()
    text = OddsDrafter("suffix", {draft.request: [0.8] * 8})
    model = Full("draft_model", {draft.request: []}, 10**6)
    planner = planner_of(cost_of([10, 12, 14, 18, 24, 60], 0.5), text, model)
    for _ in range(1000):
        draft.cut(0)
        draft.draft_ms = 0.0
        planner.draft([draft])
    assert model.num_refused <= 10
    planner.release(draft.request)
    assert planner._policies[0]._backoffs == {}
