"""ARCHITECTURE.md names only what there is, where it says that it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from outrider import pipelines

FOLDER = Path(next(iter(pipelines.__path__)))
PAGE = (FOLDER / "ARCHITECTURE.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"`([^`\n]+)`", PAGE)
PATH, NAME = re.compile(r"(\.\./)?[a-z0-9_/]+(\.py|\.css|/)"), re.compile(r"\w+(\.\w+)?")
NAMES = [quoted for quoted in QUOTED if NAME.fullmatch(quoted) and not PATH.fullmatch(quoted)]
# `Name` (`file.py`), `Name`s of something (`file.py`), or `Name` in `file.py`
PLACED = re.findall(r"`(\w+(?:\.\w+)?)`(?:s [\w ]+)?\s+(?:\(|in )`([\w/]+\.py)`", PAGE)


def defined_in(path: Path) -> Iterator[str]:
    """The names at the top level of a module, and `Class.member` for methods and attributes of its classes."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        yield from bound_by(node)
        if isinstance(node, ast.ClassDef):
            own = [name for statement in node.body for name in bound_by(statement)]
            set_on_self = [
                target.attr
                for target in ast.walk(node)
                if isinstance(target, ast.Attribute)
                and isinstance(target.ctx, ast.Store)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            ]
            yield from (f"{node.name}.{member}" for member in (*own, *set_on_self))


def bound_by(statement: ast.stmt) -> list[str]:
    """The names that a statement defines or assigns."""
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


DEFINED = {path.relative_to(FOLDER).as_posix(): set(defined_in(path)) for path in FOLDER.rglob("*.py")}


def test_every_path_exists():
    paths = [quoted for quoted in QUOTED if PATH.fullmatch(quoted) and quoted != "pipelines/"]
    assert len(paths) > 20
    assert [path for path in paths if not (FOLDER / path).exists()] == []


def test_every_name_is_in_the_file_that_is_given_with_it():
    assert len(PLACED) > 20
    assert [(name, file) for name, file in PLACED if name not in DEFINED[file]] == []


def test_every_name_is_defined():
    """In the file that the page gives with it or with its class, or else in any."""
    files = {name.partition(".")[0]: file for name, file in PLACED}
    anywhere = set().union(*DEFINED.values())
    anywhere |= {name.rpartition(".")[2] for name in anywhere}
    known = {name: DEFINED.get(files.get(name.partition(".")[0], ""), anywhere) for name in NAMES}
    assert len(known) > 30
    assert [name for name in known if name not in known[name]] == []


def test_it_is_at_most_two_pages():
    assert len(PAGE.split()) < 1100
