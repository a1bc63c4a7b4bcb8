"""What drafting saved, and how drafts fared by depth, on traces that can be reckoned in the head."""

from __future__ import annotations

import pytest

from outrider.app.chat.core.insight import insight_of
from outrider.app.chat.core.receipt import Receipt, first_difference
from outrider.app.chat.core.time_saved import time_saved_in
from outrider.pipelines.engine.trace import TARGET, PassRecord

PLAIN_MS = 10.0


def record(took_ms: float, drafted: tuple[str, ...], sources: tuple[str, ...]) -> PassRecord:
    return PassRecord(1.0, 1.0 + took_ms / 1e3, 0.0, 0.0, 1 + len(drafted), drafted, sources)


PROMPT = record(500, (), ())
FIRST = record(300, (), (TARGET,))


def test_a_pass_saves_the_plain_passes_that_it_spared_less_its_extra_time() -> None:
    kept_two = record(14, ("suffix",) * 3, ("suffix", "suffix", TARGET))
    time_saved = time_saved_in([PROMPT, FIRST, kept_two], PLAIN_MS)
    assert time_saved.by_drafter == pytest.approx({"suffix": 2 * 10 - (14 - 10)})
    assert time_saved.total_ms == pytest.approx(16)


def test_drafts_that_were_rejected_cost_what_they_made_the_pass_longer() -> None:
    time_saved = time_saved_in([FIRST, record(14, ("draft_model",) * 2, (TARGET,))], PLAIN_MS)
    assert time_saved.by_drafter == pytest.approx({"draft_model": -4})


def test_each_drafter_gets_its_own_tokens_and_bears_its_share_of_the_extra_time() -> None:
    mixed = record(18, ("suffix", "draft_model", "draft_model", "draft_model"), ("suffix", "draft_model", TARGET))
    time_saved = time_saved_in([mixed], PLAIN_MS)
    assert time_saved.by_drafter == pytest.approx({"suffix": 10 - 2, "draft_model": 10 - 6})


def test_an_answer_that_ends_within_a_draft_saved_one_pass_less() -> None:
    time_saved = time_saved_in([record(14, ("suffix",) * 3, ("suffix", "suffix"))], PLAIN_MS)
    assert time_saved.by_drafter == pytest.approx({"suffix": 10 - 4})


def test_passes_without_drafts_save_nothing() -> None:
    assert time_saved_in([PROMPT, FIRST, FIRST], PLAIN_MS).by_drafter == {}


def test_a_saving_is_what_plain_passes_would_have_taken_less_what_the_passes_took() -> None:
    trace = [record(14, ("a", "b"), ("a", "b", TARGET)), record(20, ("b",) * 4, (TARGET,)), record(9, ("a",), ("a",))]
    num_tokens, took_ms = 3 + 1 + 1, 14 + 20 + 9
    assert time_saved_in(trace, PLAIN_MS).total_ms == pytest.approx(num_tokens * PLAIN_MS - took_ms)
    assert time_saved_in(trace, PLAIN_MS).at(3.0).total_ms == pytest.approx(num_tokens * 3.0 - took_ms)


@pytest.mark.parametrize(
    ("plain_ms", "drafted_ms", "is_certain"),
    [((10, 10.2, 9.9, 10.1), 13, True), ((10, 14, 7, 13), 18, False), ((10, 14, 7, 13), 11, True), ((), 19.5, False)],
)
def test_a_saving_is_certain_only_where_it_is_more_than_plain_passes_differ_by(
    plain_ms, drafted_ms, is_certain
) -> None:
    """By as much as those of the same answer do, or by a tenth where they are few."""
    plain = [record(ms, (), (TARGET,)) for ms in plain_ms]
    time_saved = time_saved_in([FIRST, *plain, record(drafted_ms, ("suffix",), ("suffix", TARGET))], PLAIN_MS)
    assert time_saved.is_certain is is_certain
    lost = time_saved_in([FIRST, *plain, *[record(40, ("suffix",), (TARGET,))] * 3], PLAIN_MS)
    assert lost.is_certain == bool(plain), "else the machine may just be busy"
    assert lost.at(PLAIN_MS).is_certain


@pytest.mark.parametrize(
    ("drafted", "is_certain"),
    [
        ([(90, 2), (11, 2), (11, 2), (11, 2)], False),  # the first passes of a process
        ([(90, 2), (12, 2), (40, 3), (11, 4)], False),
        ([(19, 2), (18, 2), (19, 2), (18, 2)], True),
        ([(90, 2), (18, 2), (18, 2), (18, 2)], True),
        ([(14, 2), (40, 9), (40, 9), (40, 9)], True),  # more rows may take longer
        ([(40, 2), (40, 2)], False),
    ],
)
def test_a_loss_is_certain_only_where_it_does_not_hang_on_a_few_passes(drafted, is_certain) -> None:
    """All drafts are rejected, in passes of so many milliseconds and rows."""
    passes = [record(took_ms, ("suffix",) * (rows - 1), (TARGET,)) for took_ms, rows in drafted]
    plain = [record(PLAIN_MS + away, (), (TARGET,)) for away in (-1.0, -1.0, 1.0, 1.0)]
    time_saved = time_saved_in([PROMPT, FIRST, *plain, *passes], PLAIN_MS)
    assert time_saved.total_ms < -time_saved.spread_ms * len(passes)
    assert time_saved.is_certain is is_certain


def test_a_saving_is_certain_though_some_passes_took_oddly_long() -> None:
    passes = [record(took_ms, ("suffix",) * 8, ("suffix",) * 8 + (TARGET,)) for took_ms in (80, 12, 12)]
    assert time_saved_in([FIRST, *passes], PLAIN_MS).is_certain


def test_acceptance_by_depth_counts_only_what_was_tested() -> None:
    rejected_second = record(1, ("a", "a", "b"), ("a", TARGET))
    all_kept = record(1, ("a", "a"), ("a", "a", TARGET))
    ended_within = record(1, ("b", "b", "b"), ("b",))
    insight = insight_of([PROMPT, FIRST, rejected_second, all_kept]) + insight_of([ended_within])
    assert insight.tested == {1: 3, 2: 2}
    assert insight.accepted == {1: 3, 2: 1}
    assert insight.lengths == {0: 1, 3: 2, 2: 1}
    assert insight.drafted == {"a": 4, "b": 4}


def test_a_receipt_names_the_first_token_that_differs() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 2, 3), (1, 5, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2
    assert Receipt(3, None, 1.0, 0.5).ratio == 2
    assert Receipt(1, None, 0.0, 0.0).ratio is None
    assert Receipt(3, None, 1.0, 0.5).plain_ms == 500
    assert Receipt(1, None, 0.0, 0.0).plain_ms is None
