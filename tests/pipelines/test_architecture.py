"""ARCHITECTURE.md names only what there is."""

from __future__ import annotations

import re
from pathlib import Path

from outrider import pipelines

FOLDER = Path(next(iter(pipelines.__path__)))
PAGE = (FOLDER / "ARCHITECTURE.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"`([^`\n]+)`", PAGE)
PATH, NAME = re.compile(r"(\.\./)?[a-z0-9_/]+(\.py|\.css|/)"), re.compile(r"\w+(\.\w+)?")
DEFINED = re.compile(r"^ *(?:class|def) (\w+)|^ *(?:self\.)?(\w+)(?:: [^=\n]+)?(?: =|$)", re.MULTILINE)


def test_every_path_exists():
    paths = [quoted for quoted in QUOTED if PATH.fullmatch(quoted) and quoted != "pipelines/"]
    assert len(paths) > 20
    assert [path for path in paths if not (FOLDER / path).exists()] == []


def test_every_name_is_defined():
    sources = [path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.py")]
    known = {name for source in sources for match in DEFINED.findall(source) for name in match}
    names = [quoted for quoted in QUOTED if NAME.fullmatch(quoted) and not PATH.fullmatch(quoted)]
    assert len(names) > 30
    assert [name for name in names if not known.issuperset(name.split("."))] == []


def test_it_is_at_most_two_pages():
    assert len(PAGE.split()) < 1000
