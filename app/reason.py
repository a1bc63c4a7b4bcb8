"""Reason: what an error said, for a page that may have words of its own for errors of that kind."""

from __future__ import annotations


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
