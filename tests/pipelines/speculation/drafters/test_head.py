"""A head proposes what it would with an empty cache, from the target's hidden states of the accepted text."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines.engine.block_pool import BlockPool
from outrider.pipelines.engine.sampling import choose_token
from outrider.pipelines.model.heads.head_model import HeadWindow
from outrider.pipelines.speculation.drafters.head import Head

from ...fakes import BLOCK_SIZE, VOCABULARY, new_request

KNOWN = np.array([0, 1, 2, 4, 5, 7, 8, 9, 11])  # ids of the target that the head can propose
REACH = 10
SAMPLED = {"do_sample": True, "temperature": 0.7, "rng_seed": 5}


def digest(*parts: object) -> int:
    return zlib.crc32(repr(parts).encode())


def target_state(text: Sequence[int]) -> list[float]:
    """Of the last token of a text: two numbers that depend on all of it."""
    return [digest("target", list(text)) % 4096, len(text)]


def row_of(rows: Sequence[tuple[list[float], int]]) -> tuple[np.ndarray, list[float]]:
    """Logits and own state after rows of (state, token)."""
    seed = digest("head", [(list(map(float, state)), token) for state, token in rows])
    return np.random.default_rng(seed).normal(0, 2, len(KNOWN)).astype(np.float32), [seed % 4096]


class FakeHead:
    """Takes the place of a head's model. Rows are read back from the slots of the cache."""

    vocabulary = KNOWN

    def __init__(self, num_blocks: int, reach: int = REACH, depth: int | None = None) -> None:
        self.reach = reach
        self.depth = depth
        self.slots: dict[int, tuple[list[float], int]] = {}
        self.windows: list[HeadWindow] = []
        self._num_blocks = num_blocks

    def forward(self, windows):
        self.windows += windows
        found = []
        for window in windows:
            for place, (state, token) in enumerate(zip(window.states, window.tokens, strict=True), window.start):
                self.slots[self._slot(window, place)] = state.tolist(), token
            end = window.start + len(window.tokens)
            found.append(row_of([self.slots[self._slot(window, place)] for place in range(end)]))
        logits, states = zip(*found, strict=True)
        return np.array(logits), np.array(states, np.float32)

    def _slot(self, window, place) -> int:
        block = window.blocks[place // BLOCK_SIZE]
        assert 0 <= block < self._num_blocks
        return block * BLOCK_SIZE + place % BLOCK_SIZE


def cold(request, ahead: Sequence[int], first: int) -> int:
    """What a head writes that reads the text from position `first` on, with nothing in its cache."""
    tokens = request.tokens
    rows = [(target_state(tokens[: at + 1]), tokens[at + 1]) for at in range(first, len(tokens) - 1)]
    logits, own = row_of(rows)
    for token in ahead:
        rows.append((own, token))
        logits, own = row_of(rows)
    spread = np.full(VOCABULARY, -np.inf, np.float32)
    spread[KNOWN] = logits
    written = [*tokens, *ahead]
    return choose_token(spread, written, request.num_prompt_tokens, request.config, request.answer)


class Reader:
    """Hands a request's states to the head as the engine does: of all tokens but the last, each once or again."""

    def __init__(self, head: Head, request, begin: int) -> None:
        self.head, self.request, self.end = head, request, begin

    def catch_up(self, again: int = 0) -> None:
        start, last = max(0, self.end - again), len(self.request.tokens) - 1
        if start < last:
            tokens = self.request.tokens
            states = np.array([target_state(tokens[: at + 1]) for at in range(start, last)], np.float32)
            self.head.read(self.request, start, states)
            states[:] = -1  # the target's memory is written over
        self.end = last


@pytest.mark.slow
@given(st.data())
def test_a_head_proposes_what_it_would_with_an_empty_cache(data):
    """Through acceptances, rejections, passes without a draft, prompts taken over, requests that come and go."""
    token = st.integers(0, VOCABULARY - 1)
    pool = BlockPool(32, BLOCK_SIZE)
    head = Head(FakeHead(32), pool, VOCABULARY)
    live: list[Reader] = []
    texts: list[list[int]] = [[]]
    for _ in range(data.draw(st.integers(1, 12))):
        if not live or data.draw(st.booleans()):
            text = data.draw(st.sampled_from(texts))
            prompt = [*text[: data.draw(st.integers(0, 40))], *data.draw(st.lists(token, min_size=2, max_size=30))]
            request = new_request(prompt, 100, data.draw(st.integers(0, 2)), **SAMPLED)
            texts.append(request.tokens)
            live.append(Reader(head, request, data.draw(st.integers(0, len(prompt) - 2))))
        reader = data.draw(st.sampled_from(live))
        request = reader.request
        reader.catch_up(data.draw(st.sampled_from([0, 0, 2, 30])) if reader.end and data.draw(st.booleans()) else 0)
        ahead = data.draw(st.lists(token, max_size=3))
        for _ in range(data.draw(st.integers(0, 4))):
            (proposal,) = head.generate([(request, ahead)])
            if proposal is None:
                assert pool.num_free < pool.blocks_for(3 * REACH)
                break
            assert proposal.token == cold(request, ahead, head._progress[request].first)
            assert len(request.tokens) - 1 - head._progress[request].first <= 2 * REACH
            ahead = [*ahead, proposal.token] if data.draw(st.booleans()) else data.draw(st.lists(token, max_size=3))
        scores = head.score([(request, ahead)])[0]
        for i, score in enumerate(scores or ()):
            assert score.proposal.token == cold(request, ahead[:i], head._progress[request].first)
        kept = data.draw(st.integers(0, len(ahead)))
        request.tokens += [*ahead[:kept], *data.draw(st.lists(token, min_size=1, max_size=2))]
        if data.draw(st.integers(0, 3)) == 0:
            live.remove(reader)
            head.release(request)
    for reader in live:
        head.release(reader.request)
    assert pool.num_free == pool.num_blocks
    assert head._progress == {}


def ready(num_tokens: int, num_blocks: int = 32, reach: int = REACH, **options):
    head = Head(FakeHead(num_blocks, reach), BlockPool(num_blocks, BLOCK_SIZE), VOCABULARY)
    request = new_request([i % VOCABULARY for i in range(num_tokens)], 100, **options)
    reader = Reader(head, request, 0)
    reader.catch_up()
    return head, request, reader


def test_a_head_computes_no_row_twice_but_those_from_its_own_states():
    head, request, reader = ready(9)
    drafted = [proposal.token for proposal in islice(head.propose(request), 3)]
    assert [(w.start, len(w.tokens)) for w in head._model.windows] == [(0, 8), (8, 1), (9, 1)]
    request.tokens += [drafted[0], drafted[1], (drafted[2] + 1) % VOCABULARY]
    reader.catch_up()
    head._model.windows.clear()
    assert head.num_behind(request) == 3
    assert head.num_behind(request, [1, 2]) == 5
    head.generate([(request, [])])
    assert [(w.start, len(w.tokens)) for w in head._model.windows] == [(8, 3)]
    assert head.num_behind(request, [1, 2]) == 2
    head.generate([(request, [1, 2])])
    assert head.num_behind(request, [1, 2, 4]) == 1
    assert head.num_behind(request, [1, 5]) == 1


def test_several_requests_share_the_passes_of_a_head():
    head, first, _ = ready(9)
    second = new_request(range(5), 100)
    Reader(head, second, 0).catch_up()
    head._model.windows.clear()
    passes = []
    forward = head._model.forward
    head._model.forward = lambda windows: (passes.append(len(windows)), forward(windows))[1]
    found = head.generate([(first, []), (second, [3, 4])])
    assert [proposal.token for proposal in found] == [cold(first, [], 0), cold(second, [3, 4], 0)]
    assert passes == [2, 1, 1]


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("num_shared", [4, 8])
def test_what_the_target_has_in_its_cache_the_head_takes_over(num_shared: int, has_ended: bool):
    head, request, _ = ready(9)
    head.generate([(request, [])])
    if has_ended:
        head.release(request)
    later = new_request([*request.tokens[:num_shared], 1, 1, 2], 100)
    Reader(head, later, num_shared).catch_up()
    assert head.num_behind(later) == num_shared + 2
    drafted = [proposal.token for proposal in islice(head.propose(later), 2)]
    assert drafted == [cold(later, [], 0), cold(later, drafted[:1], 0)]


def test_a_head_takes_over_no_more_than_it_reads():
    head, request, reader = ready(REACH)
    request.tokens += range(REACH // 2)
    reader.catch_up()
    later = new_request([*request.tokens, 1, 1], 100)
    Reader(head, later, 3 * BLOCK_SIZE).catch_up()
    assert head.num_behind(later) == REACH
    assert head.generate([(later, [])])[0].token == cold(later, [], len(later.tokens) - 1 - REACH)


def test_nothing_is_taken_over_from_another_text():
    head, request, _ = ready(9)
    other = new_request([*request.tokens[:3], 0, *request.tokens[4:], 1, 1], 100)
    Reader(head, other, 8).catch_up()
    assert head.num_behind(other) == 2
    assert head.generate([(other, [])])[0].token == cold(other, [], 8)


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("length", range(4 * REACH, 4 * REACH + BLOCK_SIZE))
def test_after_a_long_answer_the_head_still_knows_all_of_the_prompt(length: int, has_ended: bool):
    head, request, reader = ready(length)
    prompt = request.tokens.copy()
    for i in range(6 * REACH):
        request.tokens.append(i % VOCABULARY)
        reader.catch_up()
    if has_ended:
        head.release(request)
    again = new_request([*prompt, 1], 100)
    # The target computes at least the last token of a prompt.
    Reader(head, again, min(length // BLOCK_SIZE * BLOCK_SIZE, length - 1)).catch_up()
    assert head.num_behind(again) == REACH
    assert head.generate([(again, [])])[0].token == cold(again, [], length - REACH)


def test_what_a_head_keeps_can_be_forgotten():
    head, request, _ = ready(9)
    head.release(request)
    for num_known in (9, 1):
        again = new_request([*request.tokens, 1], 100)
        Reader(head, again, 8).catch_up()
        assert head.num_behind(again) == num_known
        head.release(again)
        head.forget()


def test_a_head_proposes_nothing_without_the_states_of_the_last_tokens():
    head, request, _ = ready(9)
    unseen = new_request(range(7), 100)
    assert head.generate([(unseen, []), (request, [])])[0] is None
    request.tokens.append(3)  # of whose predecessor the state is not known yet
    assert head.generate([(request, [])]) == [None]


def test_a_head_without_room_proposes_nothing_until_there_is_some():
    head, request, _ = ready(9, num_blocks=2)
    table, _ = head._pool.open((), BLOCK_SIZE)
    assert head.generate([(request, [])]) == [None]
    head._pool.close(table)
    assert head.generate([(request, [])])[0].token == cold(request, [], 0)


def test_a_head_of_limited_depth_proposes_nothing_behind_it_and_scores_up_to_it():
    head, request, _ = ready(9)
    every = [proposal.token for proposal in islice(head.propose(request), 4)]
    scored = head.score([(request, every)])[0]
    head = Head(FakeHead(32, REACH, depth=3), BlockPool(32, BLOCK_SIZE), VOCABULARY)
    Reader(head, request, 0).catch_up()
    assert [proposal.token for proposal in head.propose(request)] == every[:3]
    assert head.generate([(request, every[:3]), (request, every[:2])])[0] is None
    assert head.generate([(request, every[:2])])[0].token == every[2]
    assert head.score([(request, every)])[0] == scored[:3]
    assert head.score([(request, every[:2])])[0][:2] == scored[:2]
    assert all(len(window.tokens) == 1 for window in head._model.windows[1:] if window.is_own)


def test_a_head_that_begins_from_one_state_reads_few_and_holds_few():
    head, request, reader = ready(8, reach=1)
    for i in range(20):
        request.tokens += [(i * k) % VOCABULARY for k in range(1 + i % 3)]
        reader.catch_up()
        assert len(head._progress[request].states) <= 2 * (2 + BLOCK_SIZE + 3)
        drafted = [proposal.token for proposal in islice(head.propose(request), 2)]
        first = head._progress[request].first
        assert drafted == [cold(request, [], first), cold(request, drafted[:1], first)]
        assert len(request.tokens) - 1 - first <= 2


def test_what_is_kept_of_a_long_text_is_bounded():
    head, request, reader = ready(8)
    for i in range(40 * REACH):
        request.tokens.append(i % VOCABULARY)
        reader.catch_up()
        assert len(head._progress[request].states) <= 4 * REACH
    assert head.generate([(request, [])])[0].token == cold(request, [], head._progress[request].first)
    assert len(head._model.windows[-1].tokens) == REACH


def test_a_pass_that_fails_leaves_a_head_that_proposes_the_same_later(monkeypatch):
    head, request, _ = ready(9)
    expected = [proposal.token for proposal in islice(head.propose(request), 3)]
    head, request, _ = ready(9)
    forward = head._model.forward
    for ahead in ([], expected[:1], expected[:2]):
        monkeypatch.setattr(head._model, "forward", broken)
        with pytest.raises(RuntimeError):
            head.generate([(request, ahead)])
        monkeypatch.setattr(head._model, "forward", forward)
        assert head.generate([(request, ahead)])[0].token == expected[len(ahead)]


def broken(windows):
    raise RuntimeError("this model is broken")
