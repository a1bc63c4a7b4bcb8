"""What the page says, in the language that the browser asks for. The phrases are in one JSON file per language."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gradio as gr

from ..core.user_message import UNFORESEEN, UserMessage, without_paths

LANGUAGES = ("en", "zh")
_FILES = {
    language: json.loads(Path(__file__).with_name(f"{language}.json").read_text(encoding="utf-8"))
    for language in LANGUAGES
}
CATALOGUES: dict[str, dict[str, str]] = {language: file["phrases"] for language, file in _FILES.items()}
# By the `kind` of a UserMessage. The messages themselves are English, so that en.json has none.
ERRORS: dict[str, dict[str, str]] = {language: file["errors"] for language, file in _FILES.items()}


class Words:
    """The phrases of one language: `words("seed", seed=7)`."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._phrases, self._errors = CATALOGUES[language], ERRORS[language]

    def __call__(self, key: str, **values: object) -> str:
        return self._phrases[key].format(**values)

    def count(self, number: int, one: str, many: str) -> str:
        """`number` in the phrase with key `one` or `many`."""
        return self(one if number == 1 else many, count=f"{number:,}")

    def error(self, message: UserMessage) -> str:
        """The message without paths, after a translation where there is one for its kind."""
        if message.kind == UNFORESEEN:
            return self("failed")
        translation, original = self._errors.get(message.kind), without_paths(message)
        return original if translation is None else f"{translation}（{original}）"


IN_ENGLISH = Words("en")


def words_of(request: gr.Request) -> Words:
    """The phrases in the language that the browser asks for, or English."""
    return Words(language_of(request.headers.get("accept-language", "")))


def language_of(accepted: str) -> str:
    """The first supported language of an Accept-Language header, in which browsers list the preferred ones first."""
    for tag in re.findall(r"[A-Za-z]+", re.sub(r"-\w+|;q=[\d.]+", "", accepted)):
        if tag.lower() in LANGUAGES:
            return str(tag.lower())
    return "en"


# Labels of components, which are the same for every visitor on the server: the browser translates them itself.
TRANSLATIONS = gr.I18n(**{tag: CATALOGUES[tag.partition("-")[0]] for tag in ("en", "zh-CN", "zh-TW", "zh")})


def translate(key: str) -> Any:
    """A label that the browser fills in, which Gradio takes wherever it takes a string."""
    return TRANSLATIONS(key)
