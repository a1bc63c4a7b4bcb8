"""Python's time outside the models: measured through noise, part of every price, and saved where nothing comes of
it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.pipelines.speculation.attempts import LONGEST_PAUSE
from outrider.pipelines.speculation.budgets import ALLOWANCE, FIRST_PAUSE, TOLERANCE
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.overhead import FEWEST, Overhead, Usual

from .odds import Clock, OddsDrafter, Pondered, Slow
from .planning import BASES, Losses, cost_of, draft_of, kept_by, planner_of


class Anything:
    """A form that forces and forbids nothing."""

    def allows(self, tokens, token) -> bool:
        return True

    def forced(self, tokens):
        return None


def test_noise_moves_what_is_usual_no_further_than_the_times_around_it():
    """Even where every third time is in a burst; and times that have changed for good are soon believed."""
    rng, usual = random.Random(5), Usual()
    assert not usual.is_known
    for i in range(300):
        usual.add(rng.uniform(0.9, 1.1) * (40 if i % 3 == 0 else 1))
        assert i < 9 or 0.9 <= usual.value <= 1.1
    for _ in range(20):
        usual.add(rng.uniform(1.9, 2.1))
    assert 1.9 <= usual.value <= 2.1


@given(st.floats(0.1, 2), st.floats(0, 0.3), st.lists(st.integers(0, 9), min_size=20), st.integers(1, 5))
def test_the_time_of_a_pass_is_told_apart_by_sequences_and_rows(sequence_ms, row_ms, drafted, num_requests):
    overhead = Overhead()
    for num_drafted in (0, 0, 0, *drafted):
        overhead.observe_rest(num_requests, num_drafted, num_requests * sequence_ms + num_drafted * row_ms)
    assert overhead.request.value == pytest.approx(sequence_ms)
    assert overhead.row.value == pytest.approx(row_ms if sum(map(bool, drafted)) >= FEWEST else 0.0, abs=1e-9)


@given(st.floats(0.1, 2), st.floats(0, 0.3), st.lists(st.integers(0, 9), min_size=20), st.integers(1, 5))
def test_what_asking_takes_is_told_apart_by_requests_and_further_tokens(asking_ms, offering_ms, offered, num_requests):
    overhead = Overhead()
    for num_further in (0, 0, 0, *offered):
        overhead.observe_asking(num_requests, num_further, num_requests * asking_ms + num_further * offering_ms)
    assert overhead.asking.value == pytest.approx(asking_ms)
    expected_ms = offering_ms if sum(map(bool, offered)) >= FEWEST else 0.0
    assert overhead.offering.value == pytest.approx(expected_ms, abs=1e-9)


@given(st.floats(0.1, 2), st.floats(0, 0.3), st.lists(st.integers(1, 9), min_size=20))
def test_where_something_is_always_offered_asking_and_offering_together_take_what_was_seen(
    asking_ms, offering_ms, offered
):
    overhead = Overhead()
    for num_further in offered:
        overhead.observe_asking(1, num_further, asking_ms + num_further * offering_ms)
    assert 0 < overhead.asking.value <= asking_ms + 9 * offering_ms
    if len(set(offered)) == 1:
        expected_ms = asking_ms + offered[0] * offering_ms
        assert overhead.asking.value + offered[0] * overhead.offering.value == pytest.approx(expected_ms)


def test_copies_are_followed_from_the_first_pass_on_though_their_many_tokens_take_python_long():
    """Asking for a single token is cheap, and what the others take is part of the price of what pays."""
    clock = Clock()
    text = Slow("suffix", {}, clock, 0.05, 0.2)
    planner = planner_of(cost_of([2, 2.1, 2.2, 2.4, 2.7, 4]), text, clock=clock)
    lengths = []
    for _ in range(20):
        draft = draft_of()
        text.odds[draft.request] = []
        for _ in range(10):
            draft.cut(0)
            planner.draft([draft])
            lengths.append(len(draft.proposals))
            planner.observe([draft], [[*draft.tokens, 3]], None)
            text.odds[draft.request] = [0.95] * 8
        planner.release(draft.request)
    assert lengths == 20 * [0, *[8] * 9]


@pytest.mark.parametrize(("asking_ms", "most_asked"), [(0.3, 100), (0.01, 1000)])
def test_drafters_that_find_nothing_are_left_alone_where_asking_them_takes_long_beside_a_pass(asking_ms, most_asked):
    """And are asked in each pass where that is next to nothing, so that no copy is missed."""
    clock, draft = Clock(), draft_of()
    text = Slow("suffix", {draft.request: []}, clock, asking_ms)
    planner = planner_of(cost_of([2, 2.2, 2.4, 2.6, 3, 8]), text, clock=clock)
    for _ in range(1000):
        draft.cut(0)
        planner.draft([draft])
        planner.observe([draft], [[3]], None)
    assert most_asked / 2 <= text.num_asked <= most_asked


def test_a_copy_that_begins_late_is_found_within_the_longest_pause_and_followed_from_there():
    clock, draft = Clock(), draft_of()
    text = Slow("suffix", {draft.request: []}, clock, 0.3)
    planner = planner_of(cost_of([2, 2.2, 2.4, 2.6, 3, 8]), text, clock=clock)
    lengths = []
    for n in range(600):
        if n == 500:
            text.odds[draft.request] = [0.95] * 8
        draft.cut(0)
        planner.draft([draft])
        lengths.append(len(draft.proposals))
        planner.observe([draft], [[*draft.tokens, 3]], None)
    found = next(n for n, length in enumerate(lengths) if length)
    assert 500 <= found <= 500 + LONGEST_PAUSE
    assert all(lengths[found:])


def test_what_drafting_was_worth_to_answers_tells_how_soon_the_next_gives_it_up():
    """And how soon drafting is first tried for it. But by the same mode and temperature only, and one that does copy is
    not given up."""
    clock = Clock()
    text = Slow("suffix", {}, clock, 0.3)
    planner = planner_of(cost_of([2, 2.2, 2.4, 2.6, 3, 8]), text, clock=clock)

    begins: list[int | None] = []  # for each answer, the pass in which the drafters are first asked

    def num_asked(odds: list[float], **options) -> int:
        """In an answer of 60 passes, the first five of which nothing is found for."""
        draft, before = draft_of(**options), text.num_asked
        begins.append(None)
        for n in range(60):
            text.odds[draft.request] = odds if n >= 5 else []
            draft.cut(0)
            planner.draft([draft])
            if begins[-1] is None and text.num_asked > before:
                begins[-1] = n
            planner.observe([draft], [[*draft.tokens, 3]], None)
        planner.release(draft.request)
        return text.num_asked - before

    hot = {"do_sample": True, "temperature": 4.0}
    copies, first = num_asked([0.95] * 8), num_asked([], **hot)
    later = [num_asked([], **hot) for _ in range(12)][-1]
    assert later <= 0.6 * first
    assert (begins[0], begins[1], begins[-1]) == (0, 0, FIRST_PAUSE)
    assert num_asked([0.95] * 8) >= 0.9 * copies, "nothing of that is known of greedy answers"
    for _ in range(12):
        num_asked([])
    assert num_asked([0.95] * 8) >= 0.8 * copies
    for _ in range(12):
        num_asked([0.95] * 8)
    assert num_asked([]) <= first, "copies are no reason to lose more than in the first answer"


def test_where_drafting_was_worth_nothing_to_many_answers_seven_in_eight_are_left_alone():
    """Only those of their kind, and only where asking takes long compared with a pass. The eighth shows when that is
    over."""
    clock = Clock()
    text = Slow("suffix", {}, clock, 0.3)
    planner = planner_of(cost_of([2, 2.2, 2.4, 2.6, 3, 8]), text, clock=clock)

    def num_asked(odds: list[float], passes: int = 60, **options) -> int:
        draft, before = draft_of(**options), text.num_asked
        text.odds[draft.request] = odds
        for _ in range(passes):
            draft.cut(0)
            planner.draft([draft])
            planner.observe([draft], [[*draft.tokens, 3]], None)
        planner.release(draft.request)
        return text.num_asked - before

    for _ in range(40):
        num_asked([])
    assert sum(num_asked([]) > 0 for _ in range(32)) == 4
    hot = {"do_sample": True, "temperature": 2.0}
    assert num_asked([], **hot), "of this kind nothing is known"
    for _ in range(40):
        num_asked([], **hot)
    tried = [(num_asked([]) > 0, num_asked([], **hot) > 0) for _ in range(32)]
    assert [sum(each) for each in zip(*tried, strict=True)] == [4, 4], "each kind has its own trials"
    copies = [num_asked([0.95] * 8) for _ in range(16)]
    begin = next(i for i, number in enumerate(copies) if number)
    assert begin < 8
    assert all(copies[begin:])
    text.asking_ms = 0.0
    for _ in range(60):
        num_asked([])
    assert all(num_asked([]) for _ in range(16)), "asking costs nothing"


@pytest.mark.parametrize("mode", ["draft", "auto"])
@pytest.mark.parametrize(("considering_ms", "least", "most"), [(0.3, 50, 100), (0.001, 950, 1000)])
def test_a_model_that_does_not_pay_is_seldom_considered_where_that_takes_long_beside_a_pass(
    considering_ms, least, most, mode
):
    """Alone, and after text drafters that are still asked."""
    clock, draft = Clock(), draft_of(mode=mode)
    model = Pondered({draft.request: [0.5] * 8}, clock, considering_ms)
    text = OddsDrafter("suffix", {draft.request: [0.95, 0.95]})
    planner = planner_of(cost_of([2, 2.2, 2.4, 2.6, 3, 8], draft_ms=3.0), text, model, clock=clock)
    for _ in range(1000):
        draft.cut(0)
        planner.draft([draft])
        assert len(draft.proposals) == (2 if mode == "auto" else 0)
        planner.observe([draft], [[*draft.tokens, 3]], None)
    assert model.num_passes == 0
    assert least <= model.num_considered <= most


@pytest.mark.parametrize(("weak", "expected"), [([], 1), ([0.2], 1), ([0.95, 0.95], 0)])
def test_behind_sure_texts_a_model_may_not_be_worth_considering_and_is_asked_at_once_where_they_are_not(weak, expected):
    """What one kind of place shows is not taken for the other."""
    clock, draft, text = Clock(), draft_of(), OddsDrafter("suffix", {})
    model = Pondered({draft.request: [0.9] * 8}, clock, 0.1)
    planner = planner_of(cost_of([2, 2.2, 4.4, 6.6, 8, 20], draft_ms=0.6), text, model, clock=clock)
    asked = []
    for n in range(1000):
        before = model.num_passes
        text.odds[draft.request] = [0.99, 0.99] if n % 5 else weak
        draft.cut(0)
        planner.draft([draft])
        asked.append(model.num_passes > before)
        planner.observe([draft], [[*draft.tokens, 3]], None)
    late = range(600, 1000)
    assert not any(asked[n] for n in late if n % 5)
    assert sum(asked[n] for n in late if not n % 5) == 80 * expected


def test_a_model_that_begins_to_pay_is_found_within_the_longest_pause():
    clock, draft = Clock(), draft_of()
    model, text = Pondered({draft.request: [0.99] * 8}, clock, 0.3), OddsDrafter("suffix", {draft.request: [0.95]})
    cost = cost_of([2, 2.2, 2.4, 2.6, 3, 8], draft_ms=3.0)
    planner = planner_of(cost, text, model, clock=clock)
    lengths = []
    for n in range(600):
        if n == 500:
            cost.drafts["draft_model"] = replace(cost.drafts["draft_model"], token_ms=0.05)
        draft.cut(0)
        planner.draft([draft])
        lengths.append(len(draft.proposals))
        planner.observe([draft], [[*draft.tokens, 3]], None)
    found = next(n for n, length in enumerate(lengths) if length > 1)
    assert 500 <= found <= 500 + LONGEST_PAUSE
    assert min(lengths[found:]) > 1


@given(
    BASES,
    st.floats(0.0, 6),
    st.floats(0.0, 1),
    st.floats(0.0, 3),
    st.floats(0.0, 3),
    st.lists(st.tuples(st.sampled_from([0.0, 0.6, 0.99]), st.floats(0, 1)), min_size=1, max_size=4),
    st.integers(2, 150),
    st.randoms(use_true_random=False),
)
@example([1.0] * 6, 0.0, 1.0, 0.0, 0.0, [(0.0, 0.0)], 2, random.Random(0))  # rows are free, offers are not
def test_the_bound_holds_with_the_time_that_python_takes(
    base, asking_ms, offering_ms, row_ms, rest_ms, claims, num_passes, rng
):
    """Once it is known, but for one attempt and what is offered last: what was too dear is tried again now and then, as
    it may be cheaper."""
    clock, drafts, cost = Clock(), [draft_of() for _ in claims], cost_of(base)
    offers = {draft.request: [odds] * 9 for draft, (odds, _) in zip(drafts, claims, strict=True)}
    text = Slow("suffix", offers, clock, asking_ms, offering_ms)
    planner = planner_of(cost, text, clock=clock)
    planner.observe(drafts, [[3]] * len(drafts), None)
    for _ in range(FEWEST):
        planner.overhead.request.add(rest_ms)
        planner.overhead.asking.add(asking_ms)
        planner.overhead.offering.add(offering_ms)
        planner.overhead.row.add(row_ms)
    plain_ms = cost.pass_ms([(len(drafts), 0)]) + rest_ms * len(drafts)
    allowed_ms = ALLOWANCE * (cost.pass_ms([(1 + len(drafts), 0)]) + rest_ms * len(drafts))
    allowed_ms += (asking_ms + offering_ms) * len(drafts)
    losses = Losses(len(drafts), plain_ms, allowed_ms, num_before=1)
    for _ in range(num_passes):
        for draft in drafts:
            draft.cut(0)
        began, num_asked, num_further = clock.now, text.num_asked, text.num_further
        planner.draft(drafts)
        asked_ms, num_asked = 1e3 * (clock.now - began), text.num_asked - num_asked
        num_further = text.num_further - num_further
        assert asked_ms == pytest.approx(num_asked * asking_ms + num_further * offering_ms)
        rows = sum(draft.rows for draft in drafts)
        python_ms = asked_ms + row_ms * (rows - len(drafts))
        waits = cost.pass_ms([(rows, 0)]) + rest_ms * len(drafts) + python_ms - plain_ms
        kept = kept_by(rng, drafts, [luck for _, luck in claims])
        losses.passed(waits, kept)
        planner.observe(drafts, kept, None, rest_ms * len(drafts) + python_ms)


@pytest.mark.parametrize("has_form_beside", [False, True])
def test_rows_that_cost_python_more_than_they_bring_are_not_drafted(has_form_beside):
    """Though the models take nothing for them."""
    lengths = []
    for row_ms in (0.0, 1.0):
        draft, beside = draft_of(), [draft_of()] if has_form_beside else []
        for other in beside:
            other.request.constraint = Anything()
        odds = {draft.request: [0.3] * 3, **{other.request: [] for other in beside}}
        planner = planner_of(cost_of([2, 2, 2, 2, 2, 20]), OddsDrafter("suffix", odds))
        for _ in range(FEWEST):
            planner.overhead.request.add(0.1)
            planner.overhead.row.add(row_ms)
        planner.draft([draft, *beside])
        lengths.append(len(draft.proposals))
    assert lengths == [3, 0]


def test_a_plain_answer_asks_nobody():
    clock, draft = Clock(), draft_of(mode="off")
    text = Slow("suffix", {draft.request: [0.9] * 9}, clock, 1.0)
    planner = planner_of(cost_of([2, 2.2, 2.4, 2.6, 3, 8]), text, clock=clock)
    planner.draft([draft])
    assert (text.num_asked, draft.proposals, clock.now) == (0, [], 0.0)


@pytest.mark.parametrize(("target_ms", "num_learnt"), [(2.0, 200), (10.0, 1000), (80.0, 1000)])
def test_of_short_passes_only_some_are_learnt_from(target_ms, num_learnt, monkeypatch):
    """Of long ones all, which follow each other slowly."""
    seen, cost, draft = [], cost_of([2, 2.2, 2.4, 2.6, 3, 8]), draft_of()
    monkeypatch.setattr(CostModel, "observe", lambda self, windows, measured_ms, _: seen.append((windows, measured_ms)))
    planner = planner_of(cost, OddsDrafter("suffix", {draft.request: []}))
    for _ in range(1000):
        planner.observe([draft], [[3]], target_ms)
    assert seen == [([(1, 2)], target_ms)] * num_learnt


@pytest.mark.parametrize("num_slow", [1, 40])
def test_a_spell_of_slowness_does_not_end_all_asking(num_slow):
    """Neither the first attempt of a process nor a busy machine, though nothing is measured while nobody is asked."""
    clock = Clock()
    text = Slow("suffix", {}, clock, 50.0)
    planner = planner_of(cost_of([2, 2.2, 2.4, 2.6, 3, 8]), text, clock=clock)
    asked = []
    for _ in range(30):
        draft = draft_of()
        text.odds[draft.request] = [0.9] * 8
        for _ in range(60):
            draft.cut(0)
            before = text.num_asked
            planner.draft([draft])
            asked.append(text.num_asked > before)
            text.asking_ms = 50.0 if len(asked) < num_slow else 0.05
            planner.observe([draft], [[*draft.tokens, 3]], None)
    assert sum(asked[300:]) > 0.95 * len(asked[300:])


def test_the_time_that_a_form_takes_is_not_the_price_of_drafts():
    clock, draft = Clock(), draft_of()
    draft.request.constraint = Anything()
    text = Slow("suffix", {draft.request: [0.99] * 8}, clock, 50.0)
    planner = planner_of(cost_of([2, 2.2, 2.4, 2.6, 3, 8]), text, clock=clock)
    for _ in range(30):
        draft.cut(0)
        planner.draft([draft])
        assert draft.proposals
        planner.observe([draft], [[*draft.tokens, 3]], 2.0, 60.0)
    assert planner.overhead == Overhead()


@pytest.mark.parametrize("asking_ms", [0.05, 0.3])
def test_beside_an_answer_with_a_form_the_time_of_other_drafts_is_counted(asking_ms):
    """Eight answers for which nothing is found delay one that drafts nothing, by no more than it may lose."""
    plain, form, others = draft_of(mode="off"), draft_of(), [draft_of() for _ in range(8)]
    form.request.constraint = Anything()
    drafts, num_passes, form_ms = [plain, form, *others], 1000, 3.0
    num_of_form = 0

    class Text(Slow):
        def propose(self, request, ahead=()):
            nonlocal num_of_form
            num_of_form += request is form.request
            self.asking_ms = form_ms if request is form.request else asking_ms
            yield from super().propose(request, ahead)

    clock = Clock()
    text = Text("suffix", {draft.request: [] for draft in [form, *others]}, clock, asking_ms)
    cost = cost_of([5, 5.1, 5.2, 5.4, 5.8, 9])
    planner = planner_of(cost, text, clock=clock)
    planner._drafters._clock = clock
    plain_ms = cost.pass_ms([(1, 0)] * len(drafts))
    for _ in range(num_passes):
        planner.draft(drafts)
        planner.observe(drafts, [[3]] * len(drafts), plain_ms, 0.0)
    allowed_ms = TOLERANCE * num_passes * plain_ms + ALLOWANCE * cost.pass_ms([(1, 0)] * (len(drafts) + 1))
    assert planner.overhead.asking.value == pytest.approx(asking_ms)
    assert 1e3 * clock.now - num_of_form * form_ms < 1.05 * allowed_ms
    assert num_of_form == num_passes, "asking about the form seems to have a price"
