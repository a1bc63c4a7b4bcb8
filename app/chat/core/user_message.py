"""What an error says to the user of the page."""

from __future__ import annotations

import re

from outrider.pipelines import OutriderError

UNFORESEEN = "Unforeseen"  # the kind of what is not an OutriderError

# An absolute path. Parts may contain spaces, brackets, commas and semicolons if another part follows. The lookbehind
# excludes URLs, rates such as tokens/s, and HTML end tags.
PATH = re.compile(
    r"""(?<![\w:/\\.<])(?:~|[A-Za-z]:|\\)?(?:[\\/](?:[^\\/\n'"“”<>|:]*[^\\/\s'"“”<>|:;,(](?=[\\/])|(?:\([^\\/\s'"“”<>|:()]*\)|[^\\/\s'"“”<>|:;,()])+))+"""
)


class UserMessage(str):
    """An English message. `kind`, the name of the error's class or of the event, selects a translation."""

    kind: str

    def __new__(cls, message: str, kind: str) -> UserMessage:
        self = super().__new__(cls, message)
        self.kind = kind
        return self

    @classmethod
    def of(cls, error: BaseException) -> UserMessage:
        """The message of an OutriderError. Other errors were not written for users, and may hold paths or prompts."""
        if not isinstance(error, OutriderError):
            return cls("", UNFORESEEN)
        return cls(str(error), type(error).__name__)


def without_paths(text: str) -> str:
    """The text with each path cut to its last part, since the page must not reveal where files are."""
    return PATH.sub(lambda found: re.split(r"[\\/]", found[0])[-1], text)
