"""Refusals, shown to whoever uses the page."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

import gradio as gr

from outrider.pipelines import OutriderError

from ..core.reason import Reason, without_paths
from ..i18n.wording import Words, words_of
from .view import View

log = logging.getLogger(__name__)


@contextmanager
def told(request: gr.Request) -> Iterator[None]:
    """Whatever goes wrong within is said on the page, and the event ends."""
    try:
        yield
    except gr.Error:
        raise
    except Exception as error:
        if not isinstance(error, OutriderError):
            log.exception("An event of the page failed")
        raise gr.Error(refusal_html(error, words_of(request)), print_exception=False) from error


def refused(why: str, request: gr.Request) -> gr.Error:
    """What is said where the page itself refuses, by the name of its words."""
    return gr.Error(words_of(request)(why), print_exception=False)


def refusal_html(error: Exception, words: Words) -> str:
    """What an error says, as Gradio shows messages; of one that nobody foresaw, that the log says more."""
    if not isinstance(error, OutriderError):
        return words("failed")
    if without_paths(str(error)) != str(error):
        log.warning("%s", error)
    return escape(words.reason(Reason.of(error)), quote=False)


def refuse_while_answering(view: View, request: gr.Request) -> None:
    if view.is_answering:
        raise refused("still_writing", request)
