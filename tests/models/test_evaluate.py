"""The evaluation measures what it says."""

from __future__ import annotations

import inspect
import math
import textwrap

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from outrider.models.pyscout import batches, corpus, evaluate, tokenizer
from outrider.models.pyscout.sizes import Shape
from outrider.models.pyscout.tasks import Conversation, TaskMaker

FUNCTIONS = [corpus.Function("python", source) for source in corpus.extract(inspect.getsource(textwrap))]
CASES = [Conversation("plain", ({"role": "assistant", "content": f"x = {n}\nreturn x * {n}"},)) for n in range(5)]


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    return tokenizer.train([function.source for function in FUNCTIONS], vocabulary=600)


def _model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    model = Shape(width=32, layers=2, heads=2, key_value_heads=1, head=16, feed_forward=32).build()
    for parameter in model.parameters():
        parameter.data *= 6  # so that it has opinions
    return model.eval()


def test_answers_without_an_end_are_counted(words: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [[5, 6, 7], [5, words.eos_token_id], [8], [9, 9], [10, words.eos_token_id]]
    monkeypatch.setattr(evaluate, "generate", lambda *_, **__: (answers, torch.empty(0)))
    found = evaluate.acceptance(_model(0), _model(1), words, CASES, 0.0)
    assert (found["cut_off"], found["tokens"]) == (0.6, 10)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_accepts_itself_and_not_a_stranger(words: PreTrainedTokenizerFast, temperature: float) -> None:
    target = _model(0)
    itself = evaluate.acceptance(target, target, words, CASES, temperature)
    stranger = evaluate.acceptance(target, _model(1), words, CASES, temperature)
    assert itself["acceptance"] == itself["agreement"] == 1.0
    assert itself["tokens_per_pass"] > 5
    assert stranger["acceptance"] < 0.5


def test_sampled_answers_follow_the_probabilities_of_the_model() -> None:
    model = _model(0)
    prompt = [7, 8, 9]
    with torch.no_grad():
        p = model(input_ids=torch.tensor([prompt])).logits[0, -1].softmax(-1)
    count = 2000
    answers, noise = evaluate.generate(model, [prompt] * count, 1, 1.0, seed=0)
    best = int(p.argmax())
    share = sum(answer == [best] for answer in answers) / count
    assert share == pytest.approx(float(p[best]), abs=4 * math.sqrt(0.25 / count))
    assert noise.shape == (1, count, len(p))
    assert [int(token) for token in (p.log() + noise[0]).argmax(-1)] == [answer[0] for answer in answers]


def test_greedy_answers_equal_step_by_step_decoding_whatever_the_batch() -> None:
    model = _model(0)
    prompts = [[7, 8, 9], [10], [11, 12, 13, 14, 15]]
    answers, _ = evaluate.generate(model, prompts, 6, 0.0, seed=0)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = list(prompt)
        for _ in range(6):
            with torch.no_grad():
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == model.config.eos_token_id:
                break
        assert answer == ids[len(prompt) :]


def test_exact_match_counts_equal_answers_alone(
    words: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = evaluate.make_cases(FUNCTIONS, TaskMaker(FUNCTIONS), "repeat", 4)
    assert len(cases) == 4
    given = {tuple(batches.prompt_ids(words, case)): case.answer for case in cases}
    spoiled = cases[0].answer
    spaced = cases[1].answer

    def answer(text: str) -> str:
        return text + "#" if text == spoiled else text.replace("\n", "\n\n", 1) if text == spaced else text

    def generate(model: object, prompts: list[list[int]], *_: object) -> tuple[list[list[int]], torch.Tensor]:
        return [words.encode(answer(given[tuple(prompt)]) + "<|end|>") for prompt in prompts], torch.empty(0)

    monkeypatch.setattr(evaluate, "generate", generate)
    found = evaluate.exact_match(_model(0), words, cases)
    assert (found["cases"], found["exact"], found["alike"]) == (4, 0.5, 0.75)


def test_perplexity_of_a_model_without_opinions_is_the_size_of_its_vocabulary(words: PreTrainedTokenizerFast) -> None:
    model = _model(0)
    torch.nn.init.zeros_(model.model.embed_tokens.weight)
    found = evaluate.perplexity(model, words, CASES)
    assert found["per_token"] == pytest.approx(tokenizer.VOCABULARY, rel=1e-4)


def test_the_same_functions_give_the_same_cases() -> None:
    for task in evaluate.EXACT_TASKS:
        first, again = (evaluate.make_cases(FUNCTIONS, TaskMaker(FUNCTIONS), task, 10) for _ in range(2))
        assert first == again
        assert first
