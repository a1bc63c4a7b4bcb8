"""The suffix drafter: finds what a slow search finds, and goes on with the edits that it has seen."""

from __future__ import annotations

import itertools
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines.speculation.acceptance import AcceptanceModel
from outrider.pipelines.speculation.drafters.suffix import (
    DEPTH,
    LONGEST_REPLACEMENT,
    MOST_REPLACEMENTS,
    PRIORS,
    REACH,
    Match,
    NgramIndex,
    Suffix,
    _Trail,
)

from ...fakes import new_request

STOP = 0
texts = st.lists(st.integers(1, 3), max_size=40)
cuts = st.lists(st.integers(1, 7), max_size=12)


def suffix() -> Suffix:
    return Suffix(AcceptanceModel(PRIORS))


def naive_match(tokens: list[int]) -> Match | None:
    """The longest end of a text of up to DEPTH tokens that occurred before, by looking everywhere."""

    def ends(gram: list[int]) -> list[int]:
        """The positions after a gram, where something follows."""
        return [i for i in range(len(gram), len(tokens)) if tokens[i - len(gram) : i] == gram]

    for length in range(min(DEPTH, len(tokens)), 0, -1):
        if found := ends(tokens[-length:]):
            counted = tokens[-min(length, DEPTH - 1) :]
            share = (len(ends([*counted, tokens[found[-1]]])) + 1) / (len(ends(counted)) + 2)
            return Match(length, found[-1], len(found), share)
    return None


def foreseen(drafter: Suffix, request, limit: int = 32) -> list[int]:
    return [proposal.token for proposal in itertools.islice(drafter.propose(request), limit)]


def replay(prompt: list[int], answer: list[int], limit: int = 32) -> list[int]:
    """How many tokens each draft got right while the answer was written, the target's own token after each."""
    drafter, request, right = suffix(), new_request(prompt, 10_000), []
    while len(request.new_tokens) < len(answer):
        rest = answer[len(request.new_tokens) :]
        draft = foreseen(drafter, request, limit)
        kept = next(
            (i for i, (a, b) in enumerate(zip(draft, rest, strict=False)) if a != b), min(len(draft), len(rest))
        )
        request.tokens += rest[: kept + 1]
        right.append(kept)
    return right


@given(texts, cuts)
def test_the_index_finds_what_a_naive_search_finds(tokens, sizes):
    index, rest = NgramIndex(), list(tokens)
    for size in [*sizes, len(tokens)]:
        index.extend(rest[:size])
        del rest[:size]
        assert index.match(index.tail) == naive_match(index.tokens)
    assert index.tokens == tokens


@given(st.lists(st.integers(0, 600), max_size=4), st.sampled_from([1, 2**31]), st.randoms(use_true_random=False))
def test_the_index_is_the_same_however_many_tokens_come_at_once(lengths, most, rng):
    at_once, one_by_one = NgramIndex(), NgramIndex()
    for length in lengths:
        tokens = [rng.randint(0, most) for _ in range(length)]
        at_once.extend(tokens)
        for token in tokens:
            one_by_one.extend((token,))
        assert at_once.tail == one_by_one.tail
    assert at_once.tokens == one_by_one.tokens
    assert at_once._entries == one_by_one._entries


@pytest.mark.parametrize(("elsewhere", "expected"), [(30, [20, 30]), (20, [20])])
def test_where_copy_and_longest_n_gram_differ_both_are_weighed_and_else_one(elsewhere, expected):
    trail = _Trail(num_prompt_tokens=21)
    trail.extend([*range(1, 11), 20, 99, *range(3, 11), elsewhere, *range(1, 11)])
    found = trail.candidates(trail._copy, trail.index.tail, 0)
    assert [candidate.token for candidate in found] == expected


def test_the_index_keeps_within_its_bound_of_memory():
    rng = random.Random(0)
    tokens = [rng.randrange(50_000) for _ in range(6000)]
    tracemalloc.start()
    index = NgramIndex()
    peak = 0.0
    for i, token in enumerate(tokens, 1):
        index.extend((token,))
        if i >= 1000:
            peak = max(peak, tracemalloc.get_traced_memory()[0] / i)
    tracemalloc.stop()
    assert DEPTH * len(tokens) * 0.9 < len(index._entries) <= DEPTH * len(tokens)
    assert peak < 2000, "bytes a token"


@given(st.lists(st.integers(1, 3), min_size=1, max_size=30), texts, cuts)
def test_proposals_follow_from_the_text_however_it_came(prompt, answer, sizes):
    drafter, request, rest = suffix(), new_request(prompt, 100), list(answer)
    for size in [*sizes, len(answer)]:
        foreseen(drafter, request, size)
        request.tokens += rest[:size]
        del rest[:size]
    at_once = new_request(prompt, 100)
    at_once.tokens += answer
    assert list(itertools.islice(drafter.propose(request), 20)) == list(itertools.islice(suffix().propose(at_once), 20))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), texts, st.lists(st.integers(0, 5), max_size=5))
def test_only_tokens_of_the_text_are_proposed_whatever_stands_ahead(prompt, answer, ahead):
    request = new_request(prompt, 100)
    request.tokens += answer
    proposed = list(itertools.islice(suffix().propose(request, ahead), 50))
    assert {proposal.token for proposal in proposed} <= set(request.tokens)
    assert all(proposal.source == "suffix" and len(proposal.features.values) == 7 for proposal in proposed)
    assert request.tokens == [*prompt, *answer]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=40))
def test_with_nothing_being_copied_the_latest_successor_of_the_longest_match_comes_first(prompt):
    match = naive_match(prompt)
    assert foreseen(suffix(), new_request(prompt), 1) == ([] if match is None else [prompt[match.end]])


def test_nothing_is_proposed_where_nothing_was_seen():
    assert foreseen(suffix(), new_request(range(50))) == []


def test_a_repetition_is_foreseen_to_its_end_and_no_further():
    code = list(range(100, 140))
    prompt = [*code, STOP, 7, 8]
    request = new_request(prompt, 100, eos_token_ids={STOP})
    request.tokens += code[:2]
    assert foreseen(suffix(), request, 100) == [*code[2:], STOP]


def test_earlier_turns_are_copied_from_too():
    question, answer = [1, 2, 3], list(range(100, 130))
    assert replay([*question, *answer, 4, 5], answer)[:2] == [0, 29]


def test_text_ahead_moves_the_copy_on():
    code = list(range(100, 140))
    drafter, request = suffix(), new_request([*code, 7, 8], 100)
    request.tokens += code[:5]
    whole = foreseen(drafter, request, 20)
    for taken in range(8):
        behind = itertools.islice(drafter.propose(request, whole[:taken]), 20 - taken)
        assert [proposal.token for proposal in behind] == whole[taken:]
    assert [p.token for p in itertools.islice(drafter.propose(request, [code[20], code[21]]), 3)] == code[22:25]


OLD, NEW = [201, 202], [301, 302, 303]


def renamed(occurrences: int, gap: int) -> tuple[list[int], list[int]]:
    """A text with a name of two tokens in it, and the same text with another name of three."""
    pieces = [list(range(1000 + i * gap, 1000 + (i + 1) * gap)) for i in range(occurrences + 1)]

    def joined(name: list[int]) -> list[int]:
        return [token for piece in pieces for token in (*piece, *name)][: -len(name)]

    return joined(OLD), joined(NEW)


@pytest.mark.parametrize("gap", [6, 11])
def test_a_replacement_seen_once_is_foreseen_from_then_on(gap):
    code, answer = renamed(8, gap)
    right = replay([5, 6, *code, 7, 8], answer)
    known = gap + len(NEW) + gap + 1  # the first name, and the draft that ends where the second begins
    written = list(itertools.accumulate(kept + 1 for kept in right))
    first = next(i for i, number in enumerate(written) if number >= known)
    assert first <= 6
    # The pass that is under way then may end with the second name; all after it is foreseen, except for the end of a
    # draft that was cut by its limit in the middle of a name.
    assert len(right) - first <= 3 + -(-(len(answer) - known) // 33)


def test_a_copy_goes_on_behind_a_deletion_and_behind_an_insertion():
    code = list(range(1000, 1100))
    deleted = [*code[:40], *code[40 + REACH - 2 :]]
    assert sum(replay([*code, 7], deleted)) == len(deleted) - 3
    inserted = [*code[:40], 501, 502, 503, *code[40:]]
    right = replay([*code, 7], inserted)
    assert len(right) == 8  # 1, 33, and 7 to the first inserted; two; the one after them; 33, 26


def test_a_copy_is_taken_up_at_its_own_place_although_the_token_stands_elsewhere_too():
    """The token after the edit is everywhere; the copy knows which one is meant, an n-gram alone does not."""
    comma = 9
    code = [token for i in range(40) for token in (1000 + i, comma)]
    answer = [*code[:40], 501, 502, *code[41:]]
    request = new_request([*code, 7], 1000)
    request.tokens += answer[:44]
    assert request.tokens[-1] != comma
    assert foreseen(suffix(), request, 20) == answer[44:64]


def test_what_is_remembered_of_edits_is_bounded():
    rng = random.Random(1)
    code = [token for _ in range(300) for token in (*rng.sample(range(1000, 1500), 8), 9)]
    answer = [token if token != 9 or rng.random() < 0.1 else rng.randrange(2000, 3000) for token in code]
    drafter, request = suffix(), new_request(code, 10_000)
    request.tokens += answer
    foreseen(drafter, request)
    (trail,) = drafter._trails.values()
    assert trail._replacements
    for known in trail._replacements.values():
        assert len(known) <= MOST_REPLACEMENTS
        assert all(max(len(old), len(new)) <= LONGEST_REPLACEMENT for old, new in known)


def test_of_two_candidates_the_one_that_has_proved_right_is_taken():
    """The same text, after opposite experience with old tokens that a replacement is known for."""
    code, answer = renamed(4, 10)
    request = new_request([5, *code, 7], 1000)
    request.tokens += answer[: answer.index(NEW[0], answer.index(NEW[0]) + 1)]
    trusting, doubting = AcceptanceModel(PRIORS), AcceptanceModel(PRIORS)
    candidates = Suffix(trusting)
    foreseen(candidates, request)
    (trail,) = candidates._trails.values()
    for candidate in trail.candidates(trail._copy, trail.index.tail, 0):
        for _ in range(200):
            trusting.observe(candidate.features, candidate.token == NEW[0])
            doubting.observe(candidate.features, candidate.token == OLD[0])
    assert foreseen(Suffix(trusting), request, 3) == NEW
    assert foreseen(Suffix(doubting), request, 2) == OLD


def test_sequences_are_kept_apart_and_forgotten():
    drafter = suffix()
    one, other = new_request([1, 2, 3, 1, 2]), new_request([1, 2, 9, 1, 2])
    assert foreseen(drafter, one, 1) == [3]
    assert foreseen(drafter, other, 1) == [9]
    for request in (one, other, new_request([1])):
        drafter.release(request)
    assert drafter._trails == {}
