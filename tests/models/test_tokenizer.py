"""The tokenizer: words look the same everywhere, and OpenVINO's copy agrees on every id and character."""

from __future__ import annotations

import inspect
import random
import textwrap

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from outrider.models.pyscout import corpus, tokenizer

TEXTS = list(corpus.extract(inspect.getsource(textwrap))) + list(corpus.extract(inspect.getsource(random)))


@pytest.fixture(scope="module")
def trained() -> PreTrainedTokenizerFast:
    return tokenizer.train(TEXTS, vocabulary=700)


def _strings() -> list[str]:
    rng = random.Random(0)
    letters = [chr(rng.randrange(33, 0x3000)) for _ in range(200)] + list("😀👩‍👩‍👧é\u0301\u200b\t\r\n  __a1A'\"") * 6
    made = ["".join(rng.choice(letters) for _ in range(rng.randrange(1, 40))) for _ in range(1000)]
    cut = [text[rng.randrange(len(text)) :] for text in TEXTS for _ in range(8)]
    return (
        made + cut + ["<|user|>hi<|end|><|assistant|>", "x <|end|> y", "a  b", "\r\n x", "\n\n\n    x ", "if x_if ifx"]
    )


def test_decoding_gives_back_every_string(trained: PreTrainedTokenizerFast) -> None:
    for text in _strings():
        assert trained.decode(trained.encode(text)) == text


@pytest.mark.slow
def test_openvino_tokenizers_agrees_on_ids_and_text(trained: PreTrainedTokenizerFast) -> None:
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer

    encoder, decoder = (ov.compile_model(m, "CPU") for m in convert_tokenizer(trained, with_detokenizer=True))
    for text in _strings():
        ids = trained.encode(text)
        assert encoder([text])["input_ids"][0].tolist() == ids
        assert decoder(np.array([ids]))["string_output"][0] == trained.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    "code", ["({})", "({}, {})", "x = {}", "return {}", "[{}]", "if not {}", "\n    {} = 1", "`{}`"]
)
def test_a_word_has_the_same_tokens_wherever_it_stands_in_code(trained: PreTrainedTokenizerFast, code: str) -> None:
    for word in ("width", "maxLen", "subsequent_indent", "HTTPServer2"):
        ids, expected = trained.encode(code.replace("{}", word)), trained.encode(word)
        found = sum(ids[i : i + len(expected)] == expected for i in range(len(ids)))
        assert found == code.count("{}")


def test_the_chat_template_marks_the_turns(trained: PreTrainedTokenizerFast) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
    ]
    text = trained.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    assert text == "<|system|>s<|end|><|user|>u<|end|><|assistant|>a<|end|>"
    prompt = trained.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert text.startswith(prompt)
    assert prompt.endswith("<|assistant|>")
    assert trained.eos_token == "<|end|>"
    assert trained.convert_tokens_to_ids(list(tokenizer.SPECIAL)) == [0, 1, 2, 3, 4]
