"""/v1/completions with OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

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


def test_token_ids_are_gone_on_with_as_their_text_is(served: Served, client: openai.OpenAI) -> None:
    ids = [served.pipeline.tokenizer.encode(prompt) for prompt in PROMPTS]
    expected = [choice.text for choice in client.completions.create(model=MODEL, prompt=PROMPTS, **SAMPLED).choices]
    several = client.completions.create(model=MODEL, prompt=ids, **SAMPLED)
    assert [choice.text for choice in several.choices] == expected
    assert several.usage is not None
    assert several.usage.prompt_tokens == sum(map(len, ids))
    alone = client.completions.create(model=MODEL, prompt=ids[1], **SAMPLED)
    assert [choice.text for choice in alone.choices] == expected[1:]


def test_a_repeated_prompt_gets_the_answers_that_more_of_them_would_have(served: Served, client: openai.OpenAI) -> None:
    first, second = PROMPTS
    options: Any = {"model": MODEL, "temperature": 1.5, "seed": 4, "max_tokens": 8}

    def texts(prompt: Any, n: int = 1, **others: Any) -> list[str]:
        answer = client.completions.create(prompt=prompt, n=n, **{**options, **others})
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.text for choice in answer.choices]

    alone, other = texts(first, 6), texts(second, 2)
    assert len(set(alone)) == 6
    assert texts([first, second, first, first], 2) == alone[:2] + other + alone[2:]
    ids = served.pipeline.tokenizer.encode(first)
    assert texts([ids, ids]) == alone[:2]
    assert len(set(texts([first, first], temperature=0))) == 1


@pytest.mark.parametrize("ids", [[10**9], [[5, 6], [7, 10**9]]], ids=str)
def test_ids_that_are_no_tokens_are_told(client: openai.OpenAI, ids: Any) -> None:
    with pytest.raises(openai.BadRequestError, match=r"1000000000 at place .* from 0 to") as error:
        client.completions.create(model=MODEL, prompt=ids)
    assert error.value.param == "prompt"


@pytest.mark.parametrize("mode", ["off", "lookup", "draft", "auto"])
def test_a_bias_is_added_whoever_drafts(served: Served, client: openai.OpenAI, mode: str) -> None:
    plain = served.pipeline.generate(PROMPTS[0], apply_chat_template=False, max_new_tokens=20).generations[0].token_ids
    banned = max(plain, key=plain.count)
    expected = served.pipeline.generate(
        PROMPTS[0], apply_chat_template=False, max_new_tokens=20, mode="off", logit_bias={banned: -100}
    ).generations[0]  # fmt: skip
    assert banned not in expected.token_ids
    asked: Any = {"model": MODEL, "max_tokens": 20, "temperature": 0, "extra_body": {"speculation": mode}}
    answer = client.completions.create(prompt=PROMPTS[0], logit_bias={str(banned): -100}, **asked)
    assert answer.choices[0].text == expected.text
    only = client.chat.completions.create(
        messages=[{"role": "user", "content": PROMPTS[0]}], logit_bias={str(banned): 100}, **asked
    )
    assert only.choices[0].message.content == served.pipeline.tokenizer.decode([banned] * 20)


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
    decode = served.pipeline.tokenizer.decode
    assert told.tokens is not None
    assert [token for token in told.tokens if token != "<|end|>"] == [
        text for text in map(decode, ([token] for token in expected.token_ids)) if text
    ]
    offsets = [len(decode(expected.token_ids[:i])) for i in range(len(expected.token_ids))]
    assert told.text_offset == offsets
    chunks: list[Any] = list(client.completions.create(**options, stream=True))
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    assert [offset for part in parts for offset in part.text_offset] == offsets
    assert [token for part in parts for token in part.tokens] == told.tokens


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_marked_lossy_where_it_was_asked_for(client: openai.OpenAI, stream: bool) -> None:
    for rule in (None, "exact", "typical", "threshold", "rejection"):
        extra = {"speculation": "draft"} | ({} if rule is None else {"acceptance": rule})
        answer: Any = client.completions.create(
            model=MODEL, prompt=PROMPTS[0], stream=stream, extra_body=extra, **SAMPLED
        )
        figures = list(answer)[-1].speculation if stream else answer.speculation
        assert figures["acceptance"] == (rule or "exact")
        assert figures["lossy"] == (rule not in (None, "exact"))


def test_lossy_rules_take_their_parameters(client: openai.OpenAI) -> None:
    options: Any = {"acceptance": "threshold", "rollback_threshold": 4.0}
    answer = client.completions.create(
        model=MODEL, prompt=PROMPTS[0], max_tokens=20, temperature=0, extra_body={"speculation": "lookup", **options}
    )
    assert answer.choices[0].text
    model_extra = answer.model_extra or {}
    assert model_extra["speculation"]["acceptance"] == "threshold"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"acceptance": "generous"}, "acceptance"),
        ({"typical_epsilon": 0.1}, "acceptance='typical'"),
        ({"acceptance": "typical", "rollback_threshold": 2.0}, "acceptance='threshold'"),
        ({"acceptance": "typical", "speculation": "off"}, "drafts nothing"),
        ({"acceptance": "typical", "typical_delta": 0.0}, "typical_delta"),
    ],
    ids=str,
)
def test_rules_and_parameters_without_effect_are_refused(client: openai.OpenAI, extra: Any, message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as error:
        client.completions.create(model=MODEL, prompt=PROMPTS[0], extra_body=extra)
    assert error.value.param in extra
