"""The shipped prompts: fixed requests to a code assistant about small functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from outrider.models.pyscout import edits

from .task import Prompt, Task

BATCH = 8
SAMPLED = {"do_sample": True, "temperature": 0.7}
WILD = {"do_sample": True, "temperature": 2.0}  # nearly random, so no drafter predicts it
FAMILIES = {
    "edit": "rename, remove or add a docstring: much copying",
    "complete": "go on after the first lines: little copying",
    "chat": "a second and a third request about the same code",
    "sampled": "editing and completing at temperature 0.7",
    "adversarial": "completing at temperature 2: every drafter fails",
    "batch": f"{BATCH} requests at once, completing",
    "batch-edit": f"{BATCH} requests at once, editing",
}


@cache
def functions() -> tuple[str, ...]:
    """The source code of the functions in the prompts."""
    text = (Path(__file__).parent / "functions.txt").read_text(encoding="utf-8")
    return tuple(ast.get_source_segment(text, node) or "" for node in ast.parse(text).body)


def shipped_tasks() -> list[Task]:
    """All tasks, family by family: 24 prompts for each, and 48 for "chat"."""
    sources = functions()
    edit = [_edit(i, source) for i, source in enumerate(sources)]
    complete = [_complete(source) for source in sources]
    mixed = [(edit if i % 2 else complete)[i] for i in range(len(sources))]
    return [
        *(Task("edit", (prompt,)) for prompt in edit),
        *(Task("complete", (prompt,)) for prompt in complete),
        *(Task("chat", (messages,)) for source in sources for messages in _chat(source)),
        *(Task("sampled", (prompt,), {**SAMPLED, "rng_seed": seed}) for seed, prompt in enumerate(mixed)),
        *(Task("adversarial", (prompt,), {**WILD, "rng_seed": seed}) for seed, prompt in enumerate(complete)),
        *_batches("batch", complete),
        *_batches("batch-edit", edit),
    ]


def _edit(number: int, source: str) -> str:
    if number % 3 == 0:
        return f"{_rename_request(edits.renamable(source)[-1])}:\n{source}"
    if number % 3 == 1:
        return f"Remove the docstring:\n{source}"
    return f"Add a docstring:\n{edits.without_docstring(source)}"


def _complete(source: str) -> str:
    lines = source.split("\n")
    return "Complete this function:\n" + "\n".join(lines[: max(2, len(lines) // 3)])


def _chat(source: str) -> Iterator[Prompt]:
    """The second and third turns of a conversation with correct answers so far."""
    without = edits.without_docstring(source)
    own, *_, old = edits.renamable(without)
    renamed = edits.rename(without, old, _new_name(old))
    second = (
        {"role": "user", "content": f"Remove the docstring:\n{source}"},
        {"role": "assistant", "content": without},
        {"role": "user", "content": f"Now {_rename_request(old, 'rename')}."},
    )
    yield second
    yield (
        *second,
        {"role": "assistant", "content": renamed},
        {"role": "user", "content": f"Now {_rename_request(own, 'rename')}."},
    )


def _rename_request(old: str, verb: str = "Rename") -> str:
    return f"{verb} `{old}` to `{_new_name(old)}`"


def _new_name(old: str) -> str:
    return f"new_{old}"


def _batches(family: str, prompts: list[str]) -> list[Task]:
    return [Task(family, tuple(prompts[i : i + BATCH])) for i in range(0, len(prompts) - BATCH + 1, BATCH)]
