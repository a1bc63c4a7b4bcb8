"""The corpus: what is read out of a wheel, and that evaluation never sees a package that was trained on."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from outrider.models.pyscout import corpus
from outrider.pipelines.errors import InvalidOption

MODULE = '''
import os

def first(a, b):
    """Doc."""
    total = a + b
    return total * {number}

class Thing:
    @property
    def second(self):
        if self.ready:
            return self.value_of_{number}
        return None

    def tiny(self): pass
'''

OTHER = """
def {name}(items, limit):
    found = [item for item in items if item.{name} > limit]
    found.sort(key=len, reverse=True)
    return found[:limit]
"""

GPL = "def gpl(x, y):\n    z = x // y\n    return {z: x, y: z, x: y}\n"
TEST = "def t(x):\n    assert x == 1, 'one'\n    assert x != 2, 'two'\n"


def _wheel(folder: Path, name: str, licence: str, files: dict[str, str]) -> None:
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\nLicense-Expression: {licence}\n")
        for path, text in files.items():
            wheel.writestr(path, text)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(corpus, "_standard_library", lambda: iter([MODULE.format(number=1)]))
    held_out = [name for name in (f"package{n}" for n in range(100)) if corpus.is_held_out(name)]
    trained = [name for name in (f"package{n}" for n in range(100)) if not corpus.is_held_out(name)]
    assert held_out
    assert len(trained) > len(held_out)
    _wheel(tmp_path, trained[0], "MIT", {"a.py": "def one(x, y):\n    z = x @ y\n    return [z, x, y, z, x]\n"})
    _wheel(tmp_path, trained[1], "GPL-3.0-only", {"a.py": GPL})
    _wheel(tmp_path, held_out[0], "MIT", {"a.py": OTHER.format(name="size"), "b.py": MODULE.format(number=2)})
    _wheel(tmp_path, held_out[1], "MIT", {"tests/a.py": TEST})
    corpus.build(tmp_path, tmp_path / "data")
    return tmp_path / "data"


def test_the_split_is_by_package(built: Path) -> None:
    trained = corpus.load(built / "train.jsonl")
    held_out = corpus.load(built / "held_out.jsonl")
    assert trained
    assert held_out
    assert not {f.package for f in trained} & {f.package for f in held_out}
    assert all(corpus.is_held_out(f.package) for f in held_out)


def test_a_held_out_function_of_a_shape_that_was_trained_on_is_dropped(built: Path) -> None:
    held_out = corpus.load(built / "held_out.jsonl")
    assert [f.source.partition("(")[0] for f in held_out] == ["def size"]


def test_packages_are_listed_with_their_licences_and_unknown_ones_left_out(built: Path) -> None:
    packages = json.loads((built / "packages.json").read_text())
    by_licence = {p["licence"]: p for p in packages}
    assert by_licence[None]["functions"] == 0
    assert not any("gpl" in f.source for f in corpus.load(built / "train.jsonl"))
    assert any(p["name"] == "python" and p["licence"] == "PSF-2.0" for p in packages)


def test_extract_gives_dedented_functions_and_methods_without_decorators() -> None:
    first, second = corpus.extract(MODULE.format(number=3))
    assert first.startswith("def first(a, b):\n    ")
    assert second.startswith("def second(self):\n    if self.ready:")


def test_extract_survives_what_does_not_parse() -> None:
    assert list(corpus.extract("def broken(:")) == []


def test_shapes_are_equal_for_functions_that_differ_in_names_only() -> None:
    assert corpus.shape(OTHER.format(name="size").strip()) == corpus.shape(OTHER.format(name="length").strip())
    assert corpus.shape("def f(a, b):\n    return a") != corpus.shape("def f(a, b):\n    return b")


def test_the_pinned_list_names_a_version_for_every_package() -> None:
    lines = [line for line in corpus.PACKAGES.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 100
    assert all(line.count("==") == 1 for line in lines)
    assert len({line.partition("==")[0] for line in lines}) == len(lines)


def test_wheels_without_a_package_to_evaluate_on_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_standard_library", lambda: iter([MODULE.format(number=1)]))
    with pytest.raises(InvalidOption, match="none has no wheel with functions to evaluate on: name a folder"):
        corpus.build(tmp_path / "none", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_download_that_fails_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], check: bool) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(InvalidOption, match=r"pip could not download the packages in .*packages\.txt: .*--wheels"):
        corpus.download(tmp_path / "wheels")
