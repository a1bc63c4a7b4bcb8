"""Clients that behave as clients do: they read, stream, dawdle, and go away at any moment. Same seed, same traces."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from .load import MODES, NAMES
from .serving import LOCAL, MODEL, user

CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "maximum": 99}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
KINDS = ("plain", "structured", "long", "batch")
MANNERS = ("whole", "stream", "dawdle", "leave", "half")
LONGEST_S = 300.0  # that a request may take on a busy machine


@dataclass(frozen=True, slots=True)
class Question:
    kind: str
    body: dict[str, Any]


@dataclass(slots=True)
class Outcome:
    """ended: requests by kind and manner. wrong: what was not as it is alone."""

    ended: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def question(rng: random.Random) -> Question:
    kind = rng.choice(KINDS)
    name = rng.choice(NAMES)
    function = f"def {name}(first, second):\n    return first {rng.choice('+-*/')} second\n"
    long = "\n".join(f"x{number} = {rng.randrange(99)}" for number in range(rng.randint(100, 200)))
    body: dict[str, Any] = {
        "model": MODEL, "messages": user(f"Repeat this.\n\n{function}{long if kind == 'long' else ''}"),
        "temperature": rng.choice([0.7, 1.3]), "seed": rng.getrandbits(32), "max_tokens": rng.randint(1, 40),
    }  # fmt: skip
    if kind == "structured":
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "item", "schema": SCHEMA}}
    if kind == "batch":
        body["n"] = rng.randint(2, 4)
    return Question(kind, body)


async def alone(client: httpx.AsyncClient, asked: Question) -> list[tuple[str, str]]:
    """What a question is answered where nothing is drafted: texts and ends."""
    answer = await client.post(CHAT, json={**asked.body, "speculation": "off"})
    answer.raise_for_status()
    return _told(answer.json())


async def trace(
    url: str, clients: int, questions: list[tuple[Question, list[tuple[str, str]]]], each: int, seed: int
) -> Outcome:
    """Each client asks so many of the questions, in one manner or another."""
    outcome = Outcome()

    async def behave(number: int) -> None:
        rng = random.Random(seed * clients + number)
        async with _client(url) as client:
            for _ in range(each):
                asked, expected = rng.choice(questions)
                manner = rng.choice(MANNERS)
                began = time.monotonic()
                try:
                    told = await _ask(client, asked, manner, rng)
                except httpx.HTTPError as error:
                    outcome.wrong.append(f"{asked}, {manner}: {error!r}")
                    continue
                outcome.seconds.append(time.monotonic() - began)
                outcome.ended[f"{asked.kind}, {manner}"] += 1
                if told is not None and told != expected:
                    outcome.wrong.append(f"{asked}, {manner}: {told}, alone {expected}")

    await asyncio.gather(*map(behave, range(clients)))
    return outcome


async def asked_alone(url: str, count: int, rng: random.Random) -> list[tuple[Question, list[tuple[str, str]]]]:
    """Questions, and what each is answered alone."""
    async with _client(url) as client:
        made = [question(rng) for _ in range(count)]
        return [(each, await alone(client, each)) for each in made]


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=LONGEST_S, trust_env=False)


async def _ask(
    client: httpx.AsyncClient, asked: Question, manner: str, rng: random.Random
) -> list[tuple[str, str]] | None:
    """The answers; None where the client did not wait for them."""
    body = {**asked.body, "speculation": rng.choice(MODES)}
    if manner == "half":
        content = json.dumps(body).encode()
        _, writer = await asyncio.open_connection(LOCAL, client.base_url.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {LOCAL}\r\nContent-Type: application/json\r\n"
        whole = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        writer.write(whole[: rng.randint(1, len(whole) - 1)])
        await writer.drain()
        writer.close()
        return None
    if manner == "whole":
        answer = await client.post(CHAT, json=body)
        answer.raise_for_status()
        return _told(answer.json())
    num_read = 0
    told: dict[int, tuple[str, str]] = {}
    stays = rng.randint(0, 8)
    async with client.stream("POST", CHAT, json={**body, "stream": True}) as stream:
        stream.raise_for_status()
        async for line in stream.aiter_lines():
            num_read += 1
            if manner == "leave" and num_read > stays:
                return None
            if manner == "dawdle":
                await asyncio.sleep(rng.random() / 100)
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                for choice in event.get("choices", ()):
                    text, end = told.get(choice["index"], ("", ""))
                    delta = choice["delta"].get("content") or ""
                    told[choice["index"]] = (text + delta, choice["finish_reason"] or end)
                if "error" in event:
                    return [("", str(event["error"]))]
    return [told[index] for index in sorted(told)]


def _told(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(choice["message"]["content"] or "", choice["finish_reason"]) for choice in answer["choices"]]
