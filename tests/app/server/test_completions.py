"""/v1/completions with OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai

from .serving import MODEL, Served

PROMPTS = ["def area(width, height):", "class Box:\n    def __init__(self"]
SAMPLED = {"temperature": 0.8, "seed": 2, "max_tokens": 20}


def test_every_prompt_gets_its_answers_in_order(served: Served, client: openai.OpenAI) -> None:
    answer: Any = client.completions.create(model=MODEL, prompt=PROMPTS, n=2, **SAMPLED)
    expected = served.pipeline.generate(
        PROMPTS, mode="off", num_return_sequences=2, do_sample=True, temperature=0.8, rng_seed=2, max_new_tokens=20,
        apply_chat_template=False,
    )  # fmt: skip
    assert [choice.text for choice in answer.choices] == expected.texts
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.completion_tokens == sum(stats.new_tokens for stats in expected.stats)
    assert answer.usage.prompt_tokens == sum(stats.prompt_tokens for stats in expected.stats[::2])
    assert answer.speculation["mode"] == "auto"


def test_a_stream_adds_up_to_the_answer(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=PROMPTS, **SAMPLED)
    chunks: list[Any] = list(client.completions.create(model=MODEL, prompt=PROMPTS, stream=True, **SAMPLED))
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    assert chunks[-1].speculation["drafted"] >= 0
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_sixteen_tokens_are_written_where_nobody_says_how_many(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="x = [", temperature=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 16


def test_log_probabilities_are_those_of_the_pipeline(served: Served, client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "prompt": PROMPTS[0], "logprobs": 2, **SAMPLED}
    answer = client.completions.create(**options)
    expected = served.pipeline.generate(
        PROMPTS[0], mode="off", logprobs=2, do_sample=True, temperature=0.8, rng_seed=2, max_new_tokens=20,
        apply_chat_template=False,
    ).generations[0]  # fmt: skip
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.token_logprobs == [token.logprob for token in expected.logprobs]
    assert told.tokens == [served.pipeline.tokenizer.decode([token]) for token in expected.token_ids]
    offsets = [sum(map(len, (told.tokens or [])[:i])) for i in range(len(expected.token_ids))]
    assert told.text_offset == offsets
    chunks: list[Any] = list(client.completions.create(**options, stream=True))
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    assert [offset for part in parts for offset in part.text_offset] == offsets
    assert [token for part in parts for token in part.tokens] == told.tokens
