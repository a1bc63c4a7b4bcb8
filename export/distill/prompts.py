"""Prompts in a file of JSON lines, as token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outrider.pipelines.errors import EmptyPrompt, InvalidOption, PromptTooLong


def read_prompts(path: Path, tokenizer: Any, longest: int) -> list[list[int]]:
    """Token ids of each line's `{"prompt": TEXT}`, or `{"messages": [...]}` rendered by the tokenizer's chat template.

    longest: the most tokens that a prompt may have.

    Raises InvalidOption, EmptyPrompt and PromptTooLong, which name the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: JSON may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"--prompts {path} cannot be read ({error}): give JSON lines in UTF-8.") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        ids = _encode(line, tokenizer, where)
        if not ids:
            raise EmptyPrompt(f"{where}: the prompt is empty.")
        if len(ids) > longest:
            raise PromptTooLong(
                f"{where}: {len(ids)} tokens leave no room for the answer (at most {longest}): shorten the prompt, or "
                "lower --max-new-tokens."
            )
        prompts.append(ids)
    if not prompts:
        raise InvalidOption(f"--prompts {path} has no line: give one prompt a line.")
    return prompts


def _encode(line: str, tokenizer: Any, where: str) -> list[int]:
    form = 'a line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}'
    try:
        entry = json.loads(line)
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidOption(f"{where} has half a surrogate pair, which is no character: leave it out.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"{where} is not valid JSON ({error}): {form}.") from error
    if not isinstance(entry, dict) or ("prompt" in entry) == ("messages" in entry):
        raise InvalidOption(f"{where} needs either a prompt or messages: {form}.")
    if "prompt" in entry:
        if not isinstance(entry["prompt"], str):
            raise InvalidOption(f"{where}: the prompt is {entry['prompt']!r}, not text: {form}.")
        return list(tokenizer.encode(entry["prompt"]))
    if not tokenizer.chat_template:
        raise InvalidOption(f"{where} has messages, and the target has no chat template: give a prompt instead.")
    if not isinstance(entry["messages"], list) or not all(map(_is_message, entry["messages"])):
        raise InvalidOption(f"{where}: the messages are not a list of objects with a role and a content: {form}.")
    try:
        text = tokenizer.apply_chat_template(entry["messages"], tokenize=False, add_generation_prompt=True)
    except Exception as error:
        raise InvalidOption(f"{where}: the chat template refuses the messages ({error}): {form}.") from error
    return list(tokenizer.encode(text, add_special_tokens=False))


def _is_message(entry: Any) -> bool:
    """Templates put nothing in the place of what is missing. An answer that calls tools may have no content."""
    return isinstance(entry, dict) and isinstance(entry.get("role"), str) and bool({"content", "tool_calls"} & {*entry})
