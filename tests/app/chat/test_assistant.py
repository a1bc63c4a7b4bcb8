"""What an answer consists of, told by a pipeline that answers from a script."""

from __future__ import annotations

from typing import ClassVar

import pytest

from outrider.app.chat.assistant import Assistant
from outrider.app.chat.core.conversation import Turn
from outrider.app.chat.core.settings import Settings

from .scripted import BEGINNING, END, ScriptedPipeline, ScriptedTokenizer


class Reasoning(ScriptedTokenizer):
    """Its template begins each answer with its reasoning."""

    vocabulary: ClassVar = {b"<think>": 0, b"</think>": 1}

    def apply_chat_template(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        opening = "assistant:<think>\n" if add_generation_prompt else ""
        return super().apply_chat_template(messages) + opening


def answered(pipeline: ScriptedPipeline) -> list[Turn]:
    """The answer each time it had grown."""
    turns = Assistant(pipeline, "scripted").answer((Turn("Write area."),), Settings(), "visitor")
    return [turn for turn in turns if isinstance(turn, Turn)]


@pytest.fixture
def reasoning(monkeypatch: pytest.MonkeyPatch) -> ScriptedPipeline:
    pipeline = ScriptedPipeline()
    monkeypatch.setattr(pipeline, "tokenizer", Reasoning(), raising=False)
    pipeline.gate.set()
    return pipeline


def test_an_answer_says_so_where_its_template_begins_it_with_reasoning(reasoning: ScriptedPipeline) -> None:
    turns = answered(reasoning)
    assert [turn.text for turn in turns] == [f"<think>\n{BEGINNING}", f"<think>\n{BEGINNING}{END}"]
    assert len(turns[-1].token_ids) == 2, "no token of the model is added"


def test_other_answers_are_what_the_model_wrote() -> None:
    pipeline = ScriptedPipeline()
    pipeline.gate.set()
    assert answered(pipeline)[-1].text == BEGINNING + END


def test_an_answer_that_is_stopped_before_its_first_token_is_empty(
    reasoning: ScriptedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reasoning, "read_tokens", 0, raising=False)
    assistant = Assistant(reasoning, "scripted")
    seen = []
    for each in assistant.answer((Turn("Write area."),), Settings(), "visitor"):
        assistant.stop("visitor")
        seen.append(each)
    assert isinstance(seen[-1], Turn)
    assert (seen[-1].text, seen[-1].finish_reason) == ("", "cancelled")
