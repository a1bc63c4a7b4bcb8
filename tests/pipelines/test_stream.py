"""A stream of pieces: what it says of itself is true, whatever else runs, and it leaves nothing behind."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Thread

import pytest

from outrider.pipelines.engine import scheduler
from outrider.pipelines.engine.request import Request
from outrider.pipelines.results import Piece
from outrider.pipelines.stream import Stream
from outrider.pipelines.text.tokenizer import TextStream

from . import reference
from .fakes import FakeModel, FakeTokenizer, fake_engine, new_request, random_rule
from .speculation.broken_drafters import unsteady

WORDS = [word.encode() for word in ("if ", "x", "é", "👍", "🏽", "\n", "return ", "e\u0301", "(", ")", "漢", " ")]
WORDS += [b"\xe2\x82", b"\xac"]
RULE = random_rule(vocabulary=len(WORDS))
TOKENIZER = FakeTokenizer(WORDS)
SAMPLED = {"do_sample": True, "mode": "draft", "num_assistant_tokens": 4}


def stream_of(engine, prompt, max_new_tokens=24, on_end=lambda text: None, **options) -> Stream:
    config = new_request(prompt, **{**SAMPLED, **options}).config
    text = TextStream(TOKENIZER, config.stop_strings)
    return Stream(engine, Request(prompt, config, max_new_tokens, text), text, on_end)


def expected(prompt, max_new_tokens=24, **options) -> reference.Answer:
    config = new_request(prompt, **{**SAMPLED, **options}).config
    return reference.decode(RULE, prompt, config, max_new_tokens, to_text=TOKENIZER.decode)


def check(pieces: list[Piece], answer: reference.Answer) -> None:
    assert "".join(piece.text for piece in pieces) == answer.text
    assert [token for piece in pieces for token in piece.token_ids] == answer.token_ids
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [answer.finish_reason]
    assert [piece.stats is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    for piece in pieces:
        assert len(piece.sources) == len(piece.token_ids)
        assert "".join(span.text for span in piece.spans) == piece.text
        assert piece.text or piece.finish_reason


@pytest.fixture
def served():
    return fake_engine(FakeModel(RULE), {"draft": unsteady(RULE)})


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_add_up_to_the_answer(served, seed):
    options = {"rng_seed": seed, "stop_strings": {"x("} if seed % 2 else set()}
    check(list(stream_of(served[0], [1, 2, seed % 9], **options)), expected([1, 2, seed % 9], **options))


def test_finish_gives_the_whole_answer_also_after_some_pieces(served):
    answer = expected([3])
    stream = stream_of(served[0], [3])
    next(stream)
    generation = stream.finish()
    assert (generation.text, list(generation.token_ids)) == (answer.text, answer.token_ids)
    assert "".join(span.text for span in generation.spans) == answer.text
    assert len(generation.sources) == len(answer.token_ids) == generation.stats.new_tokens
    assert stream.finish() == replace(generation, stats=stream.finish().stats)


def test_the_trace_so_far_tells_of_every_token_written(served):
    stream = stream_of(served[0], [3])
    assert stream.trace == ()
    seen = []
    for piece in stream:
        seen += piece.sources
        assert [source for record in stream.trace for source in record.sources][: len(seen)] == seen
    assert stream.trace == stream.finish().trace


def test_a_stream_tells_after_each_pass_how_much_of_its_prompt_is_read(served, monkeypatch):
    monkeypatch.setattr(scheduler, "PREFILL_ROWS", 8)
    prompt = [i % 9 for i in range(30)]
    stream = stream_of(served[0], prompt)
    seen = [stream.read_tokens]
    while not stream.stats.new_tokens:
        stream.advance()
        seen.append(stream.read_tokens)
        assert seen[-1] == sum(record.num_rows for record in stream.trace)
    assert seen[0] == 0
    assert len(seen) > 4
    assert seen[-1] == stream.prompt_tokens == 30
    generation = stream.finish()
    assert stream.read_tokens == 30
    again = stream_of(served[0], prompt)
    again.advance()
    assert again.read_tokens == again.stats.cached_tokens + again.trace[0].num_rows
    assert again.finish().token_ids == generation.token_ids


def test_a_closed_stream_frees_its_blocks_and_ends(served):
    engine, pool = served
    stream = stream_of(engine, range(9))
    next(stream)
    assert pool.num_free < pool.num_blocks
    stream.close()
    assert pool.num_free == pool.num_blocks
    assert list(stream) == []


def test_a_stream_that_another_thread_closes_gives_no_last_piece(served, monkeypatch):
    """Here the reader asks for the next piece in the moment in which the answer is cancelled."""
    engine, told, taken = served[0], [], []
    stream = stream_of(engine, [4], on_end=told.append)
    reader, cancel = Thread(target=lambda: taken.extend(stream)), engine.cancel

    def cancel_while_one_reads(request):
        cancel(request)
        reader.start()
        reader.join(0.1)

    next(stream)
    monkeypatch.setattr(engine, "cancel", cancel_while_one_reads)
    stream.close()
    reader.join(60)
    assert (taken, told) == ([], [])


@pytest.mark.parametrize("num_passes", range(9))
def test_what_was_written_before_a_stream_was_closed_can_be_had(served, num_passes):
    """Its text is that of its tokens, whether pieces were taken or not, as often as it is asked for."""
    stream = stream_of(served[0], [4])
    for i in range(num_passes):
        if i % 3:
            stream.advance()
        else:
            served[0].step()
    stream.close()
    generation = stream.finish()
    assert generation.finish_reason == "cancelled"
    assert len(generation.token_ids) == len(generation.sources) >= num_passes
    assert generation.text == TOKENIZER.decode(generation.token_ids)
    assert "".join(span.text for span in generation.spans) == generation.text
    again = stream.finish()
    assert (again.text, again.spans) == (generation.text, generation.spans)


def test_a_dropped_stream_frees_its_blocks(served):
    engine, pool = served
    for piece in stream_of(engine, range(9)):
        assert piece.finish_reason is None
        break
    gc.collect()
    assert pool.num_free == pool.num_blocks


def test_an_error_in_the_loop_over_pieces_frees_the_blocks(served):
    engine, pool = served

    def read() -> None:
        with stream_of(engine, range(9)) as stream:
            for _ in stream:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read()
    assert pool.num_free == pool.num_blocks


def test_a_cancelled_stream_ends_with_a_last_piece_and_all_its_text(served):
    engine, pool = served
    answer = expected([4])
    stream = stream_of(engine, [4])
    pieces = [next(stream)]
    stream.cancel()
    assert pool.num_free == pool.num_blocks
    pieces += stream
    token_ids = [token for piece in pieces for token in piece.token_ids]
    assert pieces[-1].finish_reason == "cancelled"
    assert 0 < len(token_ids) < 24
    assert token_ids == answer.token_ids[: len(token_ids)]
    assert "".join(piece.text for piece in pieces) == TOKENIZER.decode(token_ids)


def test_the_end_is_told_once_with_the_whole_text_and_not_for_a_closed_answer(served):
    told = []
    list(stream_of(served[0], [5], on_end=told.append))
    stream = stream_of(served[0], [6], on_end=told.append)
    next(stream)
    stream.close()
    list(stream)
    assert told == [expected([5]).text]


def test_an_error_of_the_model_reaches_the_reader_and_the_next_answer_is_served():
    model = FakeModel(RULE)
    engine, pool = fake_engine(model)

    def fail(windows):
        raise RuntimeError("the device is gone")

    stream = stream_of(engine, [1, 2], mode="off")
    next(stream)
    model.before_pass = fail
    with pytest.raises(RuntimeError, match="the device is gone"):
        list(stream)
    assert list(stream) == []
    with pytest.raises(RuntimeError, match="the device is gone"):
        stream.finish()
    model.before_pass = lambda windows: None
    assert pool.num_free == pool.num_blocks
    check(list(stream_of(engine, [1, 2], mode="off")), expected([1, 2]))


def test_threads_that_read_at_once_get_what_each_would_get_alone(served):
    """Each thread's pass also writes into the streams of the others."""
    engine, pool = served
    cases = [([n % 5, n % 3], {"rng_seed": n, "stop_strings": {"x("}}) for n in range(120)]
    answers = [expected(prompt, **options) for prompt, options in cases]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            read = list(threads.map(lambda case: list(stream_of(engine, case[0], **case[1])), cases))
    finally:
        sys.setswitchinterval(interval)
    for pieces, answer in zip(read, answers, strict=True):
        check(pieces, answer)
    assert pool.num_free == pool.num_blocks


def test_what_another_thread_has_written_can_be_taken(served):
    """No matter who steps, the pieces are those that iterating gives, and taking them runs nothing."""
    engine, _ = served
    streams = [stream_of(engine, [n], rng_seed=n) for n in range(3)]
    assert [stream.take() for stream in streams] == [None] * 3
    pieces: list[list[Piece]] = [[], [], []]
    while not all(stream.ended for stream in streams):
        passes = engine.load.passes
        engine.step()
        assert engine.load.passes == passes + 1
        for taken, stream in zip(pieces, streams, strict=True):
            while (piece := stream.take()) is not None:
                taken.append(piece)
        assert engine.load.passes == passes + 1
    for n, taken in enumerate(pieces):
        check(taken, expected([n], rng_seed=n))
        assert streams[n].take() is None
        assert list(streams[n]) == []
        assert streams[n].stats == taken[-1].stats


def test_the_load_tells_who_waits_who_runs_and_what_is_held(served):
    engine, pool = served
    assert (engine.load.waiting, engine.load.running, engine.load.cache_used) == (0, 0, 0)
    first, second = stream_of(engine, [1, 2]), stream_of(engine, [3])
    assert (engine.load.waiting, engine.load.running) == (2, 0)
    next(first)
    assert (engine.load.waiting, engine.load.running) == (0, 2)
    assert engine.load.cache_used == 1 - pool.num_free / pool.num_blocks > 0
    first.close()
    assert engine.load.running == 1
    second.close()
    assert (engine.load.waiting, engine.load.running, engine.load.cache_used) == (0, 0, 0)
