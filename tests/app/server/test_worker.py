"""What happens to answers: clients that go away, queues that are full, time that is up, ends and failures."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from starlette.types import Message, Receive, Scope, Send

from outrider.app.server import events, worker
from outrider.app.server.limits import Limits
from outrider.app.server.metrics import Metrics
from outrider.pipelines import LLMPipeline

from .serving import AREA, LOCAL, MODEL, PATIENCE_S, REPEAT, Served, running, user, wait_until

# The model repeats itself until its context is full, token by token: some seconds.
ENDLESS: dict[str, Any] = {
    "model": MODEL, "prompt": 'return f"{self.__class__.__name__}(' * 3, "temperature": 0, "max_tokens": 1900,
    "extra_body": {"speculation": "off"},
}  # fmt: skip
ENDLESS_BODY = {**{name: value for name, value in ENDLESS.items() if name != "extra_body"}, "speculation": "off"}


class Passes:
    """Counts the passes that begin after a client's answers were dropped, while blocks are still held."""

    def __init__(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dropped = 0
        self.after: list[bool] = []
        backend, pool = served.pipeline.backend, served.pool
        step, close = backend.step, worker.Answers.close

        def counted_step() -> None:
            if self.dropped:
                self.after.append(pool.num_free < pool.num_blocks)
            step()

        def counted_close(answers: worker.Answers) -> None:
            close(answers)
            self.dropped += 1

        monkeypatch.setattr(backend, "step", counted_step)
        monkeypatch.setattr(worker.Answers, "close", counted_close)


@pytest.fixture
def passes(served: Served, monkeypatch: pytest.MonkeyPatch) -> Passes:
    return Passes(served, monkeypatch)


def test_a_stream_that_is_closed_frees_its_blocks_within_one_step(served: Served, passes: Passes) -> None:
    cancelled = served.metric('outrider_requests_total{outcome="cancelled"}')
    with served.client() as client:
        stream = client.completions.create(**ENDLESS, stream=True)
        for _ in range(3):
            next(stream)
        assert served.pool.num_free < served.pool.num_blocks
        stream.close()
    wait_until(lambda: served.pool.num_free == served.pool.num_blocks)
    assert passes.dropped == 1
    assert len(passes.after) <= 1  # it may just have begun
    wait_until(lambda: served.metric('outrider_requests_total{outcome="cancelled"}') == cancelled + 1)


@pytest.mark.parametrize("ahead", ["", "\r\n", f"GET /health HTTP/1.1\r\nHost: {LOCAL}\r\n\r\n"])
def test_a_client_that_goes_away_while_it_waits_frees_its_blocks(served: Served, passes: Passes, ahead: str) -> None:
    """Whatever it has sent behind its request."""
    cancelled = served.metric('outrider_requests_total{outcome="cancelled"}')
    body = json.dumps({**ENDLESS_BODY, "n": 1}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {LOCAL}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((LOCAL, int(served.url.rpartition(":")[2]))) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: served.pool.num_free < served.pool.num_blocks)
        connection.sendall(ahead.encode())
    wait_until(lambda: served.pool.num_free == served.pool.num_blocks)
    assert passes.dropped == 1
    assert len(passes.after) <= 1
    served.post("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1})  # counted after the other
    assert served.metric('outrider_requests_total{outcome="cancelled"}') == cancelled + 1


def test_an_asynchronous_task_can_be_cancelled(served: Served, passes: Passes) -> None:
    async def ask() -> None:
        async with served.async_client() as client:
            task = asyncio.create_task(client.completions.create(**ENDLESS))
            while served.pool.num_free == served.pool.num_blocks:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(ask())
    wait_until(lambda: served.pool.num_free == served.pool.num_blocks)
    assert len(passes.after) <= 1


def test_others_go_on_when_one_goes_away(served: Served) -> None:
    def ask(seed: int) -> str:
        with served.client() as client:
            answer = client.completions.create(model=MODEL, prompt=AREA, seed=seed, max_tokens=60)
            return answer.choices[0].text

    def leave(_: int) -> None:
        with served.client() as client:
            stream = client.completions.create(**ENDLESS, stream=True)
            next(stream)
            stream.close()

    with ThreadPoolExecutor(8) as threads:
        leaving = threads.map(leave, range(6))
        texts = list(threads.map(ask, range(6)))
        list(leaving)
    options = {"do_sample": True, "temperature": 1.0, "max_new_tokens": 60, "apply_chat_template": False, "mode": "off"}
    assert texts == [str(served.pipeline.generate(AREA, rng_seed=seed, **options)) for seed in range(6)]


@pytest.fixture
def narrow(pipeline: LLMPipeline) -> Iterator[Served]:
    with running(pipeline, Limits(answers=2, retry_after_s=3)) as served:
        yield served


def test_a_full_queue_says_when_to_try_again(narrow: Served) -> None:
    with narrow.client() as client:
        streams = [client.completions.create(**ENDLESS, stream=True) for _ in range(2)]
        with pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(model=MODEL, prompt="x")
        assert refused.value.response.headers["retry-after"] == "3"
        assert refused.value.code == "queue_full"
        streams[0].close()
        wait_until(lambda: narrow.server.worker.num_open == 1)
        assert client.completions.create(model=MODEL, prompt="x", max_tokens=1).choices
        with pytest.raises(openai.BadRequestError) as refused_for_good:
            client.completions.create(model=MODEL, prompt="x", n=3)
        assert refused_for_good.value.param == "n"
        streams[1].close()
    wait_until(lambda: narrow.pool.num_free == narrow.pool.num_blocks)


@pytest.fixture
def hasty(pipeline: LLMPipeline) -> Iterator[Served]:
    with running(pipeline, Limits(request_s=0.3)) as served:
        yield served


def test_an_answer_that_takes_too_long_is_ended_with_an_error(hasty: Served) -> None:
    with hasty.client(max_retries=3) as client:
        with pytest.raises(openai.InternalServerError) as late:
            client.completions.create(**ENDLESS)
        assert (late.value.status_code, late.value.code) == (504, "timeout")
        assert hasty.metric('outrider_requests_total{outcome="timed_out"}') == 1, "it was tried again"
        stream = client.completions.create(**ENDLESS, stream=True)
        with pytest.raises(openai.APIError, match="took longer"):
            list(stream)
    wait_until(lambda: hasty.pool.num_free == hasty.pool.num_blocks)
    assert hasty.metric('outrider_requests_total{outcome="timed_out"}') == 2


def test_an_answer_that_nobody_reads_keeps_no_other_out(pipeline: LLMPipeline) -> None:
    """A client can keep its connection open and not read; what it was to get is written, and waits for it alone."""
    options = {"max_new_tokens": 12, "ignore_eos": True, "apply_chat_template": False, "num_return_sequences": 1}

    async def ask() -> str:
        serving = worker.Worker(pipeline, Limits(answers=1), Metrics(pipeline.backend))
        serving.start()
        try:
            answers = await serving.open("x = [", options, 1, "prompt")
            assert serving.num_open == 1
            await asyncio.to_thread(wait_until, lambda: serving.num_open == 0)
            (await serving.open("y", options, 1, "prompt")).close()
            return "".join([piece.text async for _, piece in answers])
        finally:
            await asyncio.to_thread(serving.close)

    assert asyncio.run(ask()) == str(pipeline.generate("x = [", **options))


def test_streams_are_ended_with_a_reason_when_the_server_ends(pipeline: LLMPipeline) -> None:
    with running(pipeline) as served, served.client() as client:
        stream = client.completions.create(**ENDLESS, stream=True)
        next(stream)
        served.server.worker.end_answers()
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        with pytest.raises(openai.InternalServerError, match="shutting down"):
            client.completions.create(model=MODEL, prompt="x")
    assert served.pool.num_free == served.pool.num_blocks


def test_who_waits_is_told_of_the_end_before_a_long_pass_is_over(
    pipeline: LLMPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, step = threading.Event(), pipeline.backend.step
    with ThreadPoolExecutor(1) as pool:
        with running(pipeline) as served:
            monkeypatch.setattr(pipeline.backend, "step", lambda: (goes_on.wait(PATIENCE_S), step()))
            answer = pool.submit(served.post, "/v1/completions", {"model": MODEL, "prompt": "x"})
            answer.add_done_callback(lambda _: goes_on.set())
            wait_until(lambda: served.server.worker._pass_began is not None)
        assert answer.result().json()["error"]["code"] == "shutting_down"
    assert served.pool.num_free == served.pool.num_blocks


def test_a_request_that_fails_harms_no_other(pipeline: LLMPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(pipeline) as served, served.client() as client:
        step, failures = pipeline.backend.step, [RuntimeError("/secret/path.cpp:3 broke")]

        def failing_step() -> None:
            if failures:
                raise failures.pop()
            step()

        monkeypatch.setattr(pipeline.backend, "step", failing_step)
        with pytest.raises(openai.InternalServerError) as failed:
            client.completions.create(model=MODEL, prompt="x")
        assert "secret" not in failed.value.response.text
        assert client.completions.create(model=MODEL, prompt="x", max_tokens=2).choices
        assert served.metric('outrider_requests_total{outcome="failed"}') == 1


def test_a_stream_is_made_of_events_as_they_are_defined(served: Served) -> None:
    body = {"model": MODEL, "messages": user(REPEAT), "stream": True, "temperature": 0}
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["transfer-encoding"] == "chunked"
        text = answer.read().decode()
    events = text.split("\n\n")
    assert events[-1] == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events[:-1])
    assert events[-2] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == AREA
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]


def test_the_first_event_comes_while_the_engine_still_runs(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived, passes, step = threading.Event(), itertools.count(), served.pipeline.backend.step

    def step_once_the_first_event_is_there() -> None:
        if next(passes) == 20 and not arrived.wait(PATIENCE_S):
            raise RuntimeError("no event has arrived after 20 passes")
        step()

    monkeypatch.setattr(served.pipeline.backend, "step", step_once_the_first_event_is_there)
    with served.client() as client:
        stream = client.completions.create(**{**ENDLESS, "max_tokens": 100}, stream=True)
        next(stream)
        arrived.set()
        assert len(list(stream)) > 50


class SlowEngine:
    """Holds up the engine, and keeps what the server sends. `finish` lets the engine go on."""

    def __init__(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[bytes] = []
        self.finish = threading.Event()
        backend, send_events = served.pipeline.backend, events.EventStream.__call__
        step = backend.step

        def held_step() -> None:
            assert self.finish.wait(PATIENCE_S)
            step()

        async def kept_events(stream: events.EventStream, scope: Scope, receive: Receive, send: Send) -> None:
            async def kept(message: Message) -> None:
                self.sent.append(message.get("body", b""))
                await send(message)

            await send_events(stream, scope, receive, kept)

        monkeypatch.setattr(backend, "step", held_step)
        monkeypatch.setattr(events.EventStream, "__call__", kept_events)
        monkeypatch.setattr(events, "PING_S", 0.01)

    @property
    def num_pings(self) -> int:
        return self.sent.count(b": ping\n\n")


@pytest.fixture
def slow(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowEngine]:
    engine = SlowEngine(served, monkeypatch)
    yield engine
    engine.finish.set()


def test_pings_keep_a_silent_stream_open_and_the_client_ignores_them(served: Served, slow: SlowEngine) -> None:
    with served.client() as client:
        stream = client.chat.completions.create(model=MODEL, messages=user(REPEAT), temperature=0, stream=True)
        first = next(stream)
        wait_until(lambda: slow.num_pings > 1)
        slow.finish.set()
        chunks = [first, *stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == AREA
    assert sum(body.startswith(b"data: ") for body in slow.sent) == len(chunks) + 1  # [DONE]


def test_a_client_can_leave_a_silent_stream(served: Served, slow: SlowEngine) -> None:
    with served.client() as client:
        stream = client.chat.completions.create(model=MODEL, messages=user(REPEAT), temperature=0, stream=True)
        next(stream)
        wait_until(lambda: slow.num_pings > 1)
        assert served.server.worker.num_open == 1
        stream.close()
        wait_until(lambda: served.server.worker.num_open == 0)


def test_metrics_count_what_was_answered(served: Served) -> None:
    def figures() -> dict[str, float]:
        names = ("prompt_tokens_total", "generated_tokens_total", "passes_total",
                 'requests_total{outcome="completed"}', "time_to_first_token_seconds_count",
                 'drafted_tokens_total{drafter="suffix"}', 'accepted_tokens_total{drafter="suffix"}')  # fmt: skip
        return {name: served.metric(f"outrider_{name}") for name in names}

    with served.client() as client:
        client.completions.create(model=MODEL, prompt="x", max_tokens=1)  # counted after all that earlier tests left
    before = figures()
    with served.client() as client:
        answer: Any = client.chat.completions.create(
            model=MODEL, messages=user(REPEAT), temperature=0, extra_body={"speculation": "suffix"}
        )
    grown = {name: value - before[name] for name, value in figures().items()}
    assert list(grown.values()) == [
        answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.speculation["passes"], 1, 1,
        answer.speculation["drafted_by"]["suffix"], answer.speculation["accepted_by"]["suffix"],
    ]  # fmt: skip
    assert served.metric("outrider_answers_running") == served.metric("outrider_answers_waiting") == 0
    with served.client() as client:
        stream = client.completions.create(**ENDLESS, stream=True)
        next(stream)
        assert served.metric("outrider_answers_running") == 1
        assert 0 < served.metric("outrider_cache_used_ratio") <= 1
        stream.close()
    wait_until(lambda: served.metric("outrider_cache_used_ratio") == 0)


def test_models_are_listed_as_openais_client_expects(served: Served) -> None:
    with served.client() as client:
        (model,) = client.models.list().data
        assert model.id == MODEL
        assert client.models.retrieve(MODEL) == model
        assert model.max_context == served.pipeline.max_context  # type: ignore[attr-defined]
