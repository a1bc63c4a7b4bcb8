"""From what a caller gives (a string, messages, a chat history) to the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import openvino_genai

from .errors import EmptyPrompt, InvalidOption
from .text import Tokenizer

Message: TypeAlias = Mapping[str, str]
Prompt: TypeAlias = str | Sequence[Message] | openvino_genai.ChatHistory
Inputs: TypeAlias = Prompt | Sequence[str]


def prompts_of(inputs: Inputs) -> list[Prompt]:
    """The single prompt, or each of a list of strings. Raises EmptyPrompt and InvalidOption."""
    if isinstance(inputs, (str, openvino_genai.ChatHistory)):
        return [inputs]
    if not isinstance(inputs, Sequence):
        raise InvalidOption(f"{type(inputs).__name__} is no prompt: give a string, a list of strings or chat messages.")
    if not inputs:
        raise EmptyPrompt("The list of prompts is empty: give at least one.")
    prompts: list[Any] = list(inputs)
    if all(isinstance(prompt, str) for prompt in prompts):
        return prompts
    for message in prompts:
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise InvalidOption(f"{message!r} is no chat message: give a dictionary of strings 'role' and 'content'.")
    return [prompts]


def messages_of(prompt: Prompt, history: Sequence[Message] | None, use_template: bool) -> list[Message] | None:
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
    """The token ids of a prompt, in the model's chat template where that is wanted or the prompt is a conversation.

    A model without a template takes a string as it is. Raises EmptyPrompt and InvalidOption.
    """
    is_text = isinstance(prompt, str) and not history
    messages = messages_of(prompt, history, use_template and (tokenizer.has_chat_template or not is_text))
    if not prompt or (messages is not None and not (messages and messages[-1].get("content"))):
        raise EmptyPrompt("The prompt is empty: give at least one character.")
    if messages is None:
        tokens = tokenizer.encode(str(prompt))
    elif tokenizer.has_chat_template:
        tools, context = (), {}
        if isinstance(prompt, openvino_genai.ChatHistory):
            tools, context = prompt.get_tools(), prompt.get_extra_context()
        text = tokenizer.apply_chat_template(messages, tools=tools, extra_context=context)
        tokens = tokenizer.encode(text, add_special_tokens=False)
    else:
        raise InvalidOption("This model has no chat template, so it takes no messages: give the prompt as a string.")
    if not tokens:
        raise EmptyPrompt(f"The prompt {prompt!r} has no tokens: give some text.")
    return tokens
