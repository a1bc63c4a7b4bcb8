"""Scrubbing: takes the folders of the user out of what a report may hold."""

from __future__ import annotations

from pathlib import Path

from outrider.pipelines.model.pair import name_of

from ..chat.core.user_message import without_paths

HOME = "~"
A_PATH = "(a path)"


def scrubbed(text: str, pair: Path) -> str:
    """The text with the pair's folder by its name alone, the user's home folder as "~", and other paths cut to their
    last parts."""
    home = Path.home()
    spelled = {each: name_of(pair) for each in (pair, pair.expanduser(), pair.absolute(), pair.resolve())}
    spelled |= dict.fromkeys((home, home.resolve()), HOME)
    for path in sorted(spelled, key=lambda each: len(str(each)), reverse=True):
        if len(path.parts) > 1:  # else it would be replaced where it is no folder
            for spelling in {str(path), path.as_posix()}:
                text = text.replace(spelling, spelled[path])
    return without_paths(text)


def without_path(value: object) -> str:
    """The value of a property; what looks like a path is not told."""
    text = str(value)
    return A_PATH if "/" in text or "\\" in text else text
