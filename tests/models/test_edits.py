"""The edits that the pair learns, against slow references that go through the syntax tree."""

from __future__ import annotations

import ast
import inspect
import json.decoder
import textwrap

import pytest

from outrider.models.pyscout import corpus, edits

SOURCE = '''def area(width, height=1, *, scale=1):
    """The area."""

    total = width * height  # in units
    for width in range(total):
        self.width = call(width=width, scale=scale)
    return [total for total in (width, total)]'''

FUNCTIONS = [source for module in (textwrap, json.decoder) for source in corpus.extract(inspect.getsource(module))]


class Renamer(ast.NodeTransformer):
    """Renames in the tree what `edits.rename` renames in the text."""

    def __init__(self, old: str, new: str) -> None:
        self.names = {old: new}

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for kind, field in ((ast.Name, "id"), (ast.arg, "arg"), (ast.FunctionDef, "name")):
            if isinstance(node, kind):
                setattr(node, field, self.names.get(getattr(node, field), getattr(node, field)))
        return super().generic_visit(node)


def test_rename_leaves_attributes_and_keywords_alone() -> None:
    renamed = edits.rename(SOURCE, "width", "w")
    assert "def area(w, height=1" in renamed
    assert "self.width = call(width=w, scale=scale)" in renamed


@pytest.mark.parametrize("source", FUNCTIONS)
def test_every_offered_rename_equals_a_rename_in_the_syntax_tree(source: str) -> None:
    for old in edits.renamable(source):
        text = edits.rename(source, old, "brand_new")
        tree = Renamer(old, "brand_new").visit(ast.parse(source))
        assert ast.dump(ast.parse(text)) == ast.dump(tree)


def test_the_sample_of_real_functions_is_not_empty() -> None:
    assert sum(len(edits.renamable(source)) for source in FUNCTIONS) > 30
    assert sum(edits.docstring(source) is not None for source in FUNCTIONS) > 5


@pytest.mark.parametrize(
    ("source", "old"),
    [
        ('def f(a):\n    return "a" + a', "a"),  # in a string
        ("def f(a):  # a is given\n    return a", "a"),  # in a comment
        ('def f(a):\n    return f"{a}"', "a"),  # in an f-string
        ("def f():\n    global a\n    a = 1", "a"),
        ("def f():\n    import a\n    return a", "a"),
        ("def f():\n    def a():\n        return 1\n    return a", "a"),
        ("def f(a):\n    return 'é', a", "a"),  # columns are bytes
    ],
)
def test_rename_refuses_what_is_a_matter_of_taste(source: str, old: str) -> None:
    assert old not in edits.renamable(source)
    with pytest.raises(ValueError, match=r"'a'|non-ASCII"):
        edits.rename(source, old, "brand_new")


def test_rename_refuses_a_name_in_use() -> None:
    with pytest.raises(ValueError, match="in use"):
        edits.rename(SOURCE, "width", "height")


@pytest.mark.parametrize("source", FUNCTIONS)
def test_removing_the_docstring_changes_nothing_else(source: str) -> None:
    if edits.docstring(source) is None:
        with pytest.raises(ValueError, match="no docstring"):
            edits.without_docstring(source)
        return
    tree = ast.parse(source)
    del tree.body[0].body[0]  # type: ignore[attr-defined]
    assert ast.dump(ast.parse(edits.without_docstring(source))) == ast.dump(tree)
    assert source.startswith(edits.header(source))


def test_a_function_that_is_only_a_docstring_keeps_it() -> None:
    assert edits.docstring('def f():\n    """Nothing."""') is None
