"""Prompts: turns a string, token ids, messages or a chat history into token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import openvino_genai

from ..errors import EmptyPrompt, InvalidOption, UnknownToken
from .tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, str]
Text: TypeAlias = str | Sequence[Message] | openvino_genai.ChatHistory
Inputs: TypeAlias = Text | Sequence[str | int | Sequence[int]]


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt given as token ids, to which no chat template is applied."""

    ids: tuple[int, ...]


Prompt: TypeAlias = Text | TokenPrompt


def prompts_of(inputs: Inputs) -> list[Prompt]:
    """The single prompt, or each of several strings or lists of token ids. Raises EmptyPrompt and InvalidOption."""
    if isinstance(inputs, (str, openvino_genai.ChatHistory)):
        return [inputs]
    if not isinstance(inputs, Sequence) or isinstance(inputs, (bytes, bytearray, memoryview)):
        raise InvalidOption(
            f"{type(inputs).__name__} is not a prompt: give a string, token ids, a list of either, or chat messages."
        )
    if not inputs:
        raise EmptyPrompt("The list of prompts is empty: give at least one.")
    prompts: list[Any] = list(inputs)
    if all(isinstance(prompt, str) for prompt in prompts):
        return prompts
    if all(map(_is_id, prompts)):
        return [_token_prompt(prompts)]
    if all(isinstance(prompt, (list, tuple)) for prompt in prompts):
        return [_token_prompt(prompt) for prompt in prompts]
    for message in prompts:
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise InvalidOption(f"{message!r} is not a chat message: give a mapping of strings 'role' and 'content'.")
    return [prompts]


def messages_of(prompt: Text, history: Sequence[Message] | None, use_template: bool) -> list[Message] | None:
    """The conversation that a prompt stands for, or None for plain text."""
    if isinstance(prompt, openvino_genai.ChatHistory):
        return prompt.get_messages()
    if not isinstance(prompt, str):
        return list(prompt)
    if not use_template:
        return None
    return [*(history or ()), {"role": "user", "content": prompt}]


def encode_prompt(
    prompt: Prompt, history: Sequence[Message] | None, tokenizer: Tokenizer, use_template: bool
) -> list[int]:
    """The token ids of a prompt.

    The model's chat template is applied to strings if `use_template`, which conversations require; a string for a model
    without a template is encoded as it is.

    history: the current chat, of which the prompt is the next message; None if there is none.

    Raises EmptyPrompt, UnknownToken and InvalidOption.
    """
    is_text = isinstance(prompt, str)
    if history is not None and not is_text:
        raise InvalidOption("A chat takes one message as a string: call finish_chat() before anything else.")
    if history is not None and not use_template:
        raise InvalidOption(
            "apply_chat_template=False is not possible in a chat, which needs the template: leave it out, or call "
            "finish_chat() first."
        )
    if isinstance(prompt, TokenPrompt):
        return _checked(prompt, tokenizer.vocabulary_size)
    if not is_text and not use_template:
        raise InvalidOption(
            "apply_chat_template=False is not possible with messages, which need the template: leave it out, or give "
            "the prompt as a string."
        )
    if history is not None and not tokenizer.has_chat_template:
        raise InvalidOption("This model has no chat template, so it cannot chat: call finish_chat() first.")
    messages = messages_of(prompt, history, use_template and (tokenizer.has_chat_template or not is_text))
    if not prompt or (messages is not None and not (messages and _says_something(messages[-1]))):
        raise EmptyPrompt("The prompt is empty: give at least one character.")
    if messages is None:
        tokens = tokenizer.encode(str(prompt))
    elif tokenizer.has_chat_template:
        tokens = _templated(prompt, messages, tokenizer)
    else:
        raise InvalidOption("This model has no chat template, so it takes no messages: give the prompt as a string.")
    if not tokens:
        raise EmptyPrompt(f"The prompt {prompt!r} has no tokens: give some text.")
    return tokens


def num_earlier_tokens(
    prompt: Prompt, history: Sequence[Message] | None, tokenizer: Tokenizer, use_template: bool, tokens: Sequence[int]
) -> int:
    """How many of the first `tokens` of a conversation belong to earlier turns, up to the latest answer."""
    if isinstance(prompt, TokenPrompt) or not tokenizer.has_chat_template:
        return 0
    messages = messages_of(prompt, history, use_template) or []
    answers = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    if not answers:
        return 0
    try:
        earlier = _templated(prompt, messages[: answers[-1] + 1], tokenizer, add_generation_prompt=False)
    except InvalidOption:  # the template requires a question at the end
        return 0
    return next((i for i, (a, b) in enumerate(zip(earlier, tokens, strict=False)) if a != b), len(earlier))


def _templated(
    prompt: Prompt, messages: Sequence[Message], tokenizer: Tokenizer, add_generation_prompt: bool = True
) -> list[int]:
    tools, context = (), {}
    if isinstance(prompt, openvino_genai.ChatHistory):
        tools, context = prompt.get_tools(), prompt.get_extra_context()
    text = tokenizer.apply_chat_template(messages, add_generation_prompt, tools, context)
    return tokenizer.encode(text, add_special_tokens=False)


def _says_something(message: Message) -> bool:
    return bool(message.get("content")) or message.get("role") == "tool"  # a tool may return nothing


def _is_id(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)  # numpy's too


def _token_prompt(ids: Sequence[Any]) -> TokenPrompt:
    if wrong := [value for value in ids if not _is_id(value)]:
        raise InvalidOption(f"{wrong[0]!r} in a prompt of token ids is not one: give whole numbers.")
    return TokenPrompt(tuple(map(int, ids)))


def _checked(prompt: TokenPrompt, vocabulary_size: int) -> list[int]:
    if not prompt.ids:
        raise EmptyPrompt("The prompt is empty: give at least one token id.")
    for place, token in enumerate(prompt.ids):
        if not 0 <= token < vocabulary_size:
            raise UnknownToken(
                f"The prompt has the token id {token} at place {place}, and this model's go from 0 to "
                f"{vocabulary_size - 1}: give ids of its own tokenizer."
            )
    return list(prompt.ids)
