"""Names of modules in app/: each says which module is meant."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from outrider import app

FOLDER = Path(next(iter(app.__path__)))


def test_no_two_modules_have_the_same_name():
    names = Counter(path.stem for path in FOLDER.rglob("*.py") if path.stem != "__init__")
    assert len(names) > 50
    assert [name for name, times in names.items() if times > 1] == []
