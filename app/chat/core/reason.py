"""Reason: what an error said, for a page that may have words of its own for errors of that kind."""

from __future__ import annotations

import re

# From a root on, in parts that may hold spaces where another part follows. What stands before the root tells a path
# from an address, a rate such as tokens/s, or an end tag.
PATH = re.compile(
    r"""(?<![\w:/\\.<])(?:~|[A-Za-z]:|\\)?(?:[\\/](?:[^\\/\n'"“”<>|:;,()]*[^\\/\s'"“”<>|:;,()](?=[\\/])|[^\\/\s'"“”<>|:;,()]+))+"""
)


class Reason(str):
    """The message; `kind` is the name of the error's class, or of what happened where there was no such error."""

    kind: str

    def __new__(cls, message: str, kind: str) -> Reason:
        reason = super().__new__(cls, message)
        reason.kind = kind
        return reason

    @classmethod
    def of(cls, error: BaseException) -> Reason:
        return cls(str(error), type(error).__name__)


def without_paths(text: str) -> str:
    """The text with nothing but its name left of each file and folder: where it lies is nobody's business on a page."""
    return PATH.sub(lambda found: re.split(r"[\\/]", found[0])[-1], text)
