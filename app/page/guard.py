"""Refusals, shown to whoever uses the page."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import gradio as gr

from outrider.pipelines import OutriderError

from ..wording import words_of
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
        raise gr.Error(str(error), title=words_of(request)("not_done"), print_exception=False) from error


def refuse_while_answering(view: View, request: gr.Request) -> None:
    if view.is_answering:
        words = words_of(request)
        raise gr.Error(words("still_writing"), title=words("one_at_a_time"), print_exception=False)
