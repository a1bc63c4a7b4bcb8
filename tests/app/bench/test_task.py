"""Tasks: the shipped ones suit their families, and a file of one's own is read or refused with its line."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path

import pytest

from outrider.app.bench.prompts import BATCH, FAMILIES, functions, shipped_tasks
from outrider.app.bench.task import BadPrompts, Task, first_of_each, read_tasks
from outrider.pipelines import GenerationConfig, InvalidOption, StructuredOutputConfig


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_every_family_has_at_least_twenty_prompts_and_no_two_tasks_are_equal() -> None:
    tasks = shipped_tasks()
    counts = Counter()
    for task in tasks:
        counts[task.family] += len(task.prompts)
        GenerationConfig().updated(task.options)
    assert list(counts) == list(FAMILIES)
    assert min(counts.values()) >= 20
    assert len({repr(task) for task in tasks}) == len(tasks)
    assert tasks == shipped_tasks()


def test_batches_are_asked_at_once_and_all_others_alone() -> None:
    for task in shipped_tasks():
        assert len(task.prompts) == (BATCH if task.family.startswith("batch") else 1)


def test_a_chat_goes_on_about_code_that_is_in_it() -> None:
    for task in shipped_tasks():
        if task.family == "chat":
            *_, answer, request = task.prompts[0]
            ast.parse(answer["content"])
            assert request["content"].split("`")[1] in answer["content"]


def test_the_functions_have_names_of_their_own() -> None:
    names = [ast.parse(source).body[0].name for source in functions()]
    assert len(set(names)) == len(names) == 24


def test_a_file_gives_prompts_messages_and_batches(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    path = written(
        tmp_path,
        {"prompt": "Hello"},
        "",
        {"messages": messages, "family": "talk", "options": {"do_sample": True, "temperature": 0.5}},
        {"prompts": ["a", "b"], "family": "two"},
    )
    assert read_tasks(path) == [
        Task("own", ("Hello",)),
        Task("talk", (tuple(messages),), {"do_sample": True, "temperature": 0.5}),
        Task("two", ("a", "b")),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is not JSON"),
        ([1], "must be an object"),
        ({"family": "x"}, "must be an object with one of"),
        ({"prompt": "a", "prompts": ["b"]}, "must be an object with one of"),
        ({"prompt": ""}, "must be a non-empty string"),
        ({"prompts": []}, "must be a non-empty string"),
        ({"messages": [{"role": "user"}]}, "must be a list of objects"),
        ({"prompt": "a", "temperature": 1}, "temperature, which does not exist"),
        ({"prompt": "a", "options": {"mode": "off"}}, "the benchmark chooses mode"),
        ({"prompt": "a", "options": []}, "must be a string and"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: object, words: str) -> None:
    with pytest.raises(BadPrompts, match="line 2") as raised:
        read_tasks(written(tmp_path, {"prompt": "good"}, line))
    assert words in str(raised.value)


def test_options_are_checked_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(BadPrompts, match=r"line 1.*temprature"):
        read_tasks(written(tmp_path, {"prompt": "a", "options": {"temprature": 1}}))
    with pytest.raises(BadPrompts, match=r"line 1.*top_p=2"):
        read_tasks(written(tmp_path, {"prompt": "a", "options": {"top_p": 2}}))
    for wrong in ({"logit_bias": {"a": 1}}, {"structured_output_config": {"regexp": "a"}}):
        with pytest.raises(BadPrompts, match=r"line 1: \"logit_bias\" must be"):
            read_tasks(written(tmp_path, {"prompt": "a", "options": wrong}))


def test_options_that_json_writes_otherwise_and_a_mark_of_the_encoding_are_taken(tmp_path: Path) -> None:
    given = {"logit_bias": {"5": 1}, "structured_output_config": {"regex": "yes|no"}, "typical_epsilon": 0.2}
    path = written(tmp_path, {"prompt": "a", "options": given})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    (task,) = read_tasks(path)
    expected = {"logit_bias": {5: 1}, "structured_output_config": StructuredOutputConfig(regex="yes|no")}
    assert task.options == {**expected, "typical_epsilon": 0.2}


def test_a_file_without_prompts_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadPrompts, match="no prompts"):
        read_tasks(written(tmp_path, ""))
    with pytest.raises(BadPrompts, match="cannot be read"):
        read_tasks(tmp_path / "none.jsonl")


def test_the_first_of_each_family_are_taken_until_there_are_enough_prompts() -> None:
    tasks = [Task("a", ("1",)), Task("b", ("2", "3")), Task("a", ("4",)), Task("b", ("5",)), Task("a", ("6",))]
    assert first_of_each(tasks, 2) == [tasks[0], tasks[1], tasks[2]]
    with pytest.raises(InvalidOption, match="prompts_per_family=0"):
        first_of_each(tasks, 0)
