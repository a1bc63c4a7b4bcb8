"""Conversations are what their task's name says, and depend on nothing but function, task and random generator."""

from __future__ import annotations

import ast
import inspect
import random
import textwrap

import pytest

from outrider.models.pyscout import corpus, edits
from outrider.models.pyscout.tasks import MIX, MOST_TURNS, WARM_UP, TaskMaker
from outrider.models.pyscout.wording import FOLLOW_UPS, WORDING

FUNCTIONS = [corpus.Function("python", source) for source in corpus.extract(inspect.getsource(textwrap))]
FUNCTIONS += [corpus.Function("python", source) for source in corpus.extract(inspect.getsource(random))]


@pytest.fixture(scope="module")
def maker() -> TaskMaker:
    return TaskMaker(FUNCTIONS)


def _all(maker: TaskMaker, task: str) -> list[tuple[str, str, str]]:
    """(source, prompt, answer) of every function that the task suits."""
    found = []
    for number, function in enumerate(FUNCTIONS):
        try:
            conversation = maker.conversation(function, task, random.Random(number), usual=True)
        except ValueError:
            continue
        found.append((function.source, conversation.prompt[0]["content"], conversation.answer))
    assert found, f"no function suits {task}"
    return found


def test_rename_answers_with_the_renamed_function(maker: TaskMaker) -> None:
    for source, prompt, answer in _all(maker, "rename"):
        request, _, given = prompt.partition("\n")
        _, old, _, new, _ = request.split("`")
        assert given == source
        assert answer == edits.rename(source, old, new) != source
        ast.parse(answer)


def test_repeat_answers_with_what_was_given(maker: TaskMaker) -> None:
    for source, prompt, answer in _all(maker, "repeat"):
        assert prompt.partition("\n")[2] == answer == source


def test_adding_and_removing_the_docstring_mirror_each_other(maker: TaskMaker) -> None:
    for source, prompt, answer in _all(maker, "undoc"):
        assert prompt.endswith(source)
        assert answer == edits.without_docstring(source)
    for source, prompt, answer in _all(maker, "doc"):
        assert prompt.endswith(edits.without_docstring(source))
        assert answer == source


def test_complete_and_write_show_a_beginning_and_answer_with_all(maker: TaskMaker) -> None:
    for task in ("complete", "write"):
        for source, prompt, answer in _all(maker, task):
            given = prompt.partition("\n")[2]
            assert answer == source
            assert source.startswith(given)
            assert given != source


def test_the_same_random_generator_gives_the_same_conversation(maker: TaskMaker) -> None:
    for mix in (MIX, WARM_UP):
        first, again = ([maker.draw(f, mix, random.Random(n)) for n, f in enumerate(FUNCTIONS)] for _ in range(2))
        assert first == again
        assert len({conversation.task for conversation in first}) > 1


def test_names_are_drawn_from_the_same_list_in_every_process(maker: TaskMaker) -> None:
    assert list(maker.identifiers) == sorted(set(maker.identifiers))
    assert len(maker.identifiers) > 20


def test_a_further_turn_edits_the_last_answer_or_another_function(maker: TaskMaker) -> None:
    rng = random.Random(0)
    sources = {function.source for function in FUNCTIONS}
    seen, lengths = set(), set()
    for function in FUNCTIONS * 40:
        messages = [m for m in maker.draw(function, MIX, rng).messages if m["role"] != "system"]
        if len(messages) < 2:
            continue
        lengths.add(len(messages) // 2)
        assert [m["role"] for m in messages] == ["user", "assistant"] * (len(messages) // 2)
        for before, request, after in zip(messages[1::2], messages[2::2], messages[3::2], strict=False):
            old, asked, new = before["content"], request["content"], after["content"]
            if "\n" in asked:  # the code comes with it
                given = [each for each in sources if each.split("\n")[0] in asked]
                edited = {*given, *(edits.without_docstring(each) for each in given if edits.docstring(each))}
                assert new in edited or len(new.split("\n")) in {len(each.split("\n")) for each in given}  # renamed
                seen.add("another")
            elif asked in FOLLOW_UPS["repeat"]:
                assert new == old
                seen.add("repeat")
            elif asked in FOLLOW_UPS["undoc"]:
                assert new == edits.without_docstring(old)
                seen.add("undoc")
            else:
                assert new != old
                assert len(new.split("\n")) == len(old.split("\n"))
                seen.add("rename")
    assert seen == {"another", "repeat", "undoc", "rename"}
    assert lengths == set(range(1, MOST_TURNS + 1))


def test_every_task_has_wordings_to_vary() -> None:
    for task in set(MIX) - {"plain"}:
        assert len(set(WORDING[task])) >= 5


def test_new_names_are_identifiers_that_do_not_occur(maker: TaskMaker) -> None:
    rng = random.Random(1)
    for function in FUNCTIONS:
        name = maker.new_name(function.source, rng)
        assert name.isidentifier()
        assert name not in function.source.split()
