"""The file of prompts that a target answers: each line is a prompt, or is refused with its number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.export.distill.prompts import read_prompts
from outrider.pipelines.errors import EmptyPrompt, InvalidOption, OutriderError, PromptTooLong

from .conftest import make_tokenizer


def test_a_prompt_may_hold_what_some_take_for_the_end_of_a_line(tmp_path: Path) -> None:
    path, texts = tmp_path / "prompts.jsonl", ["a\u2028b", "c\u0085d"]
    path.write_text("\r\n".join(json.dumps({"prompt": text}, ensure_ascii=False) for text in texts), encoding="utf-8")
    tokenizer = make_tokenizer()
    assert [tokenizer.decode(ids) for ids in read_prompts(path, tokenizer, longest=20)] == texts


@pytest.mark.parametrize(
    ("line", "error", "said"),
    [
        ("{", InvalidOption, "line 2 is not valid JSON"),
        ('"text"', InvalidOption, "line 2 needs either a prompt or messages"),
        ('{"prompt": "a", "messages": []}', InvalidOption, "line 2 needs either a prompt or messages"),
        ('{"text": "a"}', InvalidOption, "line 2 needs either a prompt or messages"),
        ('{"prompt": 3}', InvalidOption, "line 2: the prompt is 3, not text"),
        ('{"prompt": ""}', EmptyPrompt, "line 2: the prompt is empty"),
        ('{"messages": []}', InvalidOption, "line 2: the chat template refuses the messages"),
        ('{"messages": 3}', InvalidOption, "line 2: the messages are not a list of objects with a role and a content"),
        ('{"messages": "Repeat it."}', InvalidOption, "line 2: the messages are not a list of objects"),
        ('{"messages": ["Repeat it."]}', InvalidOption, "line 2: the messages are not a list of objects"),
        ('{"messages": [{"content": "a"}]}', InvalidOption, "line 2: the messages are not a list of objects"),
        ('{"messages": [{"role": "user"}]}', InvalidOption, "line 2: the messages are not a list of objects"),
        ('{"prompt": "a\\ud83d"}', InvalidOption, "line 2 has half a surrogate pair"),
        ('{"messages": [{"role": "user", "content": "\\ud83d"}]}', InvalidOption, "line 2 has half a surrogate pair"),
        ("[" * 100_000, InvalidOption, "line 2 is not valid JSON"),
        ('{"prompt": "def area(width, height): return width * height"}', PromptTooLong, "leave no room for the answer"),
    ],
)
def test_lines_that_are_no_prompts_are_refused(
    tmp_path: Path, line: str, error: type[OutriderError], said: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n{line}\n')
    with pytest.raises(error, match=said):
        read_prompts(path, make_tokenizer(), longest=8)


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n \n")
    with pytest.raises(InvalidOption, match="has no line"):
        read_prompts(path, make_tokenizer(), longest=8)
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(InvalidOption, match="cannot be read"):
        read_prompts(path, make_tokenizer(), longest=8)


def test_messages_need_a_chat_template(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}]}')
    tokenizer = make_tokenizer()
    assert tokenizer.decode(read_prompts(path, tokenizer, longest=50)[0]) == "<|user|>a<|end|><|assistant|>"
    tokenizer.chat_template = None
    with pytest.raises(InvalidOption, match="has no chat template"):
        read_prompts(path, tokenizer, longest=50)
