"""The server keeps to its own OpenAPI description, whatever is sent to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import CHECKS

from outrider.pipelines import LLMPipeline

from .serving import MODEL, Served, running, wait_until

NUM_EXAMPLES = 60  # of each operation and kind: what one request in twenty shows is found 95 times of 100
# A sound body can still be refused, for a tool that the model does not know or a prompt that is too long.
LEFT_OUT = {"positive_data_acceptance"}


@pytest.fixture(scope="module")
def described(pipeline: LLMPipeline) -> Iterator[Served]:
    with running(pipeline) as served:
        yield served


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Ask for the model that is there, and for few tokens, so that a sound request is answered, and soon."""
    if isinstance(body, dict):
        if isinstance(body.get("model"), str):
            body["model"] = MODEL
        for name in ("max_tokens", "max_completion_tokens"):
            if body.get(name) is None or (isinstance(body[name], int) and body[name] > 0):
                body[name] = 3
        if "messages" not in body:  # of /v1/completions, which has one limit only
            del body["max_completion_tokens"]
        if isinstance(body.get("n"), int) and 0 < body["n"] <= 128:
            body["n"] = 1 + body["n"] % 3
    return body


def answerable(body: dict[str, Any], number: int) -> dict[str, Any]:
    """A sound body without what this model cannot do, and what no description can forbid; every other is streamed."""
    body = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
    body["stream"] = number % 2 == 1
    if not body["stream"]:
        body.pop("stream_options", None)
    if not body.get("logprobs"):
        body.pop("top_logprobs", None)
    if body.get("temperature") == 0:
        body.pop("n", None)
    return body


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/{model_id}"),
        ("GET", "/health"),
        ("GET", "/metrics"),
    ],
)
def test_what_is_described_is_done(described: Served, method: str, path: str, mode: Any) -> None:
    schema = schemathesis.openapi.from_url(f"{described.url}/openapi.json")
    operation = schema[path][method]
    checks = [check for check in CHECKS.get_all() if check.__name__ not in LEFT_OUT]
    seen: list[int] = []
    kinds: set[str] = set()

    @hypothesis.settings(
        max_examples=NUM_EXAMPLES, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if mode is schemathesis.GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body = answerable(case.body, len(seen))
        answer = case.call(timeout=60)
        case.validate_response(answer, checks=checks)
        seen.append(answer.status_code)
        kinds.add(answer.headers["content-type"][0].partition(";")[0])

    try:
        ask()
    except hypothesis.errors.Unsatisfiable:
        assert mode is schemathesis.GenerationMode.NEGATIVE  # there is no way to ask it wrongly
        return
    assert seen
    assert max(seen) < 500
    if mode is schemathesis.GenerationMode.POSITIVE:
        assert 200 in seen or path.endswith("{model_id}")
        assert kinds == {"application/json", "text/event-stream"} or method == "GET"
    wait_until(lambda: described.server.worker.num_open == 0)


def test_what_answers_get_answers_head(described: Served) -> None:
    for path in ("/health", "/metrics", "/v1/models", f"/v1/models/{MODEL}", "/v1/models/other", "/openapi.json"):
        told, got = httpx.head(described.url + path), described.get(path)
        assert (told.status_code, told.content) == (got.status_code, b"")
        assert told.headers["content-type"] == got.headers["content-type"]
        assert int(told.headers["content-length"]) > 0
    assert httpx.head(f"{described.url}/v1/completions").status_code == 405
    described_methods = {method for path in described.get("/openapi.json").json()["paths"].values() for method in path}
    assert described_methods == {"get", "post"}


def test_the_description_covers_every_route(described: Served) -> None:
    description = described.get("/openapi.json").json()
    assert set(description["paths"]) == {
        "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model_id}", "/health", "/metrics",
    }  # fmt: skip
