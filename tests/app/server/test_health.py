"""Health: "ok" where an answer can be written, and otherwise why not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from outrider.app.server import worker
from outrider.app.server.limits import Limits
from outrider.pipelines import LLMPipeline
from tests.pipelines.devices.elsewhere import Elsewhere

from .serving import MODEL, PATIENCE_S, Served, running, wait_until

ASKED = {"model": MODEL, "prompt": "x", "max_tokens": 2}


@pytest.fixture
def own(pipeline: LLMPipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server for one test, which tries again whenever it is asked."""
    monkeypatch.setattr(worker, "TRIAL_EVERY_S", 0.0)
    with running(pipeline) as served:
        yield served


def health(served: Served) -> tuple[int, dict[str, object]]:
    answer = served.get("/health")
    return answer.status_code, answer.json()


def is_ok(served: Served) -> bool:
    return health(served) == (200, {"status": "ok", "exact": served.pipeline.exact})


def reason_of(served: Served) -> str:
    status, told = health(served)
    assert (status, told.pop("exact"), told.pop("status")) == (503, served.pipeline.exact, "failed")
    return str(told["reason"])


def test_health_tells_when_the_model_is_ready(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_ok(own)
    monkeypatch.setattr(own.server.worker, "ready", False)
    assert health(own) == (503, {"status": "warming up", "exact": own.pipeline.exact})


@pytest.mark.parametrize("exact", [True, False])
def test_exactness_is_told_as_it_is_now(own: Served, monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    """It can change when the CPU takes over from a device."""
    monkeypatch.setattr(LLMPipeline, "exact", property(lambda pipeline: exact))
    assert health(own) == (200, {"status": "ok", "exact": exact})


def test_a_model_that_fails_to_start_is_told(pipeline: LLMPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "warm_up", lambda: 1 / 0)
    with running(pipeline) as served:
        assert "failed to start" in reason_of(served)
        assert served.post("/v1/completions", ASKED).status_code == 503


def test_a_server_that_cannot_say_that_it_is_ready_says_that_it_has_stopped(
    pipeline: LLMPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And refuses what arrives, which would otherwise wait for ever."""
    fails = property(lambda worker: lambda: 1 / 0, lambda worker, given: None)
    monkeypatch.setattr(worker.Worker, "on_warm", fails, raising=False)
    with running(pipeline) as served:
        wait_until(lambda: "Restart the server" in str(health(served)))
        assert served.post("/v1/completions", ASKED).status_code == 503


def test_a_device_that_always_drafts_is_well_again_when_it_answers(embedded_pair, monkeypatch) -> None:
    elsewhere = Elsewhere(embedded_pair, "GPU")
    monkeypatch.setattr(worker, "TRIAL_EVERY_S", 0.0)
    with running(elsewhere.open(speculation="lookup")) as served:
        assert is_ok(served)
        elsewhere.faulty.fails_after = 0
        assert served.post("/v1/completions", ASKED).status_code == 500
        assert "Answers fail" in reason_of(served)
        elsewhere.faulty.fails_after = None
        assert is_ok(served)


def test_while_the_cpu_takes_over_nothing_needs_to_be_restarted(embedded_pair, monkeypatch) -> None:
    elsewhere = Elsewhere(embedded_pair, "GPU")
    pipeline = elsewhere.open(fallback="CPU")
    loads, may_load, load = threading.Event(), threading.Event(), pipeline.backend._load
    monkeypatch.setattr(worker, "HANG_S", 0.0)
    monkeypatch.setattr(pipeline.backend, "_load", lambda: (loads.set(), may_load.wait(PATIENCE_S), load())[-1])
    with running(pipeline) as served, ThreadPoolExecutor(1) as pool:
        elsewhere.faulty.fails_after = 0
        answer = pool.submit(served.post, "/v1/completions", ASKED)
        assert loads.wait(PATIENCE_S)
        assert health(served) == (503, {"status": "warming up", "exact": False})
        may_load.set()
        assert answer.result().status_code == 200
        assert is_ok(served)


def test_a_model_whose_passes_fail_is_told_until_one_succeeds(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(own.pipeline.speculation.engine._target, "forward", lambda windows: 1 / 0)
        assert is_ok(own)
        assert own.post("/v1/completions", ASKED).status_code == 500
        for _ in range(2):
            assert "Answers fail" in reason_of(own)
    assert is_ok(own)
    assert own.pool.num_free == own.pool.num_blocks


def test_while_answers_are_written_nothing_is_tried(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = own.pipeline.backend.load.passes
    for _ in range(5):
        assert is_ok(own)
    own.post("/v1/completions", {**ASKED, "max_tokens": 0})  # refused, which says nothing about the model
    assert is_ok(own)
    assert own.pipeline.backend.load.passes == passes


def test_one_failed_request_does_not_make_the_server_fail(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(own.pipeline, "streams", lambda *arguments, **options: 1 / 0)
        assert own.post("/v1/completions", ASKED).status_code == 500
    assert is_ok(own)


def test_trials_are_not_made_at_each_question(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "TRIAL_EVERY_S", 3600.0)
    calls = []

    def broken(windows: object) -> None:
        calls.append(windows)
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(own.pipeline.speculation.engine._target, "forward", broken)
    assert own.post("/v1/completions", ASKED).status_code == 500
    for _ in range(5):
        reason_of(own)
    assert len(calls) == 2


def test_a_pass_that_does_not_end_is_told(pipeline: LLMPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(pipeline, Limits(request_s=2.0)) as served:
        monkeypatch.setattr(served.server.worker, "_pass_began", time.monotonic() - 3)
        assert "longer than 2 s" in reason_of(served)
        monkeypatch.setattr(served.server.worker, "_pass_began", time.monotonic())
        assert is_ok(served)


def test_no_pass_may_take_longer_than_a_minute(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own.server.worker, "_pass_began", time.monotonic() - 61)
    assert "longer than 60 s" in reason_of(own)


def test_preprocessing_that_hangs_is_told_until_it_goes_on(
    pipeline: LLMPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "TRIAL_EVERY_S", 0.0)
    goes_on, streams = threading.Event(), pipeline.streams

    def waiting(*arguments: Any, **options: Any) -> Any:
        goes_on.wait(60)
        return streams(*arguments, **options)

    monkeypatch.setattr(pipeline, "streams", waiting)
    with running(pipeline, Limits(read_s=0.2)) as served:
        for _ in range(2):  # the first has begun, the second waits for it
            refused = served.post("/v1/completions", ASKED)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "preprocessing_busy")
            assert "not preprocessed in time" in reason_of(served)
        goes_on.set()
        wait_until(lambda: is_ok(served))


def test_answers_end_with_an_error_when_what_runs_the_model_ends(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(answers: worker.Answers) -> None:
        raise SystemExit

    with own.client() as client:
        stream = client.completions.create(model=MODEL, prompt="x = [", max_tokens=1500, temperature=0, stream=True)
        next(stream)
        monkeypatch.setattr(own.server.worker, "_written", dies)
        with pytest.raises(openai.APIError):
            list(stream)
    assert "Restart the server" in reason_of(own)
    assert own.post("/v1/completions", ASKED).status_code == 503
    assert own.pool.num_free == own.pool.num_blocks


def test_a_server_that_ends_says_so(own: Served) -> None:
    own.server.worker.end_answers()
    assert "shutting down" in reason_of(own)
