"""Task: prompts to answer, and their family."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.pipelines import GenerationConfig, InvalidOption, OutriderError, StructuredOutputConfig
from outrider.pipelines.config import PARAMETERS

Prompt = str | tuple[Mapping[str, str], ...]

_KEYS = {"prompt", "messages", "prompts", "family", "options"}


class BadPrompts(OutriderError):
    """A file of prompts that is unreadable or malformed."""


@dataclass(frozen=True, slots=True)
class Task:
    """Prompts that are answered together: one, or a batch.

    options: fields of GenerationConfig. place: the file and line that it was read from.
    """

    family: str
    prompts: tuple[Prompt, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    place: str = field(default="", compare=False, repr=False)

    @property
    def is_batch(self) -> bool:
        return len(self.prompts) > 1


def read_tasks(path: Path) -> list[Task]:
    """The tasks in a file of JSON lines.

    Each line is an object with "prompt" (a string), "messages" (a conversation) or "prompts" (strings to answer at
    once), and with "family" and "options" if wanted. Raises BadPrompts with the number of the line that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: JSON may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise BadPrompts(f"{path} cannot be read ({error}): give a text file of JSON lines.") from error
    tasks = [_task(f"{path}, line {n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    if not tasks:
        raise BadPrompts(f'{path} has no prompts: give at least one line such as {{"prompt": "..."}}.')
    return tasks


def _task(place: str, line: str) -> Task:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise BadPrompts(f"{place} is not JSON: {error}") from error
    if not isinstance(entry, dict) or len(entry.keys() & {"prompt", "messages", "prompts"}) != 1:
        raise BadPrompts(f'{place} must be an object with one of "prompt", "messages" and "prompts".')
    if unknown := entry.keys() - _KEYS:
        raise BadPrompts(
            f"{place} has {', '.join(sorted(unknown))}, which does not exist: use {', '.join(sorted(_KEYS))}."
        )
    family, options = entry.get("family", "own"), entry.get("options", {})
    if not isinstance(family, str) or not isinstance(options, dict):
        raise BadPrompts(f'{place}: "family" must be a string and "options" an object.')
    if {"mode", "num_return_sequences", "acceptance"} & options.keys():
        raise BadPrompts(
            f"{place}: the benchmark chooses mode, num_return_sequences and acceptance itself: leave them out."
        )
    return Task(family, _prompts(place, entry), _options(place, options), place)


def _options(place: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as GenerationConfig takes them: in JSON, all keys are strings, and a form is an object.

    Whether the parameters of a lossy rule suit is checked later, since the rule is chosen by the command.
    """
    options = dict(given)
    try:
        if isinstance(biases := options.get("logit_bias"), dict):
            options["logit_bias"] = {int(token): bias for token, bias in biases.items()}
        if isinstance(form := options.get("structured_output_config"), dict):
            options["structured_output_config"] = StructuredOutputConfig(**form)
        GenerationConfig().updated({name: value for name, value in options.items() if name not in PARAMETERS})
    except OutriderError as error:
        raise BadPrompts(f"{place}: {error}") from error
    except (ValueError, TypeError) as error:
        raise BadPrompts(
            f'{place}: "logit_bias" must be an object of numbers by token id, and "structured_output_config" one with '
            f"json_schema, regex or grammar. ({error})"
        ) from error
    return options


def _prompts(place: str, entry: Mapping[str, Any]) -> tuple[Prompt, ...]:
    if "messages" in entry:
        messages = entry["messages"]
        if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
            raise BadPrompts(f'{place}: "messages" must be a list of objects with strings "role" and "content".')
        return (tuple(messages),)
    prompts = entry["prompts"] if "prompts" in entry else [entry["prompt"]]
    if not isinstance(prompts, list) or not prompts or not all(isinstance(p, str) and p for p in prompts):
        raise BadPrompts(f"{place}: a prompt must be a non-empty string.")
    return tuple(prompts)


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def first_of_each(tasks: Sequence[Task], prompts_per_family: int) -> list[Task]:
    """The first tasks of each family, up to a number of prompts. Raises InvalidOption for a number below 1."""
    if prompts_per_family < 1:
        raise InvalidOption(f"prompts_per_family={prompts_per_family} is not possible: give at least 1.")
    counts: dict[str, int] = {}
    chosen = []
    for task in tasks:
        if counts.get(task.family, 0) < prompts_per_family:
            counts[task.family] = counts.get(task.family, 0) + len(task.prompts)
            chosen.append(task)
    return chosen
