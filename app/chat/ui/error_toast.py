"""Errors, shown as toasts on the page."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

import gradio as gr

from outrider.pipelines import OutriderError

from ..core.user_message import UserMessage, without_paths
from ..i18n.translations import Words, words_of
from .view import View

log = logging.getLogger(__name__)


@contextmanager
def errors_as_toasts(request: gr.Request) -> Iterator[None]:
    """Turn every exception of the block into a gr.Error, which ends the event and shows on the page."""
    try:
        yield
    except gr.Error:
        raise
    except Exception as error:
        if not isinstance(error, OutriderError):
            log.exception("An event of the page failed")
        raise gr.Error(error_html(error, words_of(request)), print_exception=False) from error


def toast(key: str, request: gr.Request) -> gr.Error:
    """The error to raise where the page itself refuses something; `key` is that of its phrase."""
    return gr.Error(words_of(request)(key), print_exception=False)


def error_html(error: Exception, words: Words) -> str:
    """The message of an OutriderError without paths, or for any other exception that the log has the details."""
    if not isinstance(error, OutriderError):
        return words("failed")
    if without_paths(str(error)) != str(error):
        log.warning("%s", error)
    return escape(words.error(UserMessage.of(error)), quote=False)


def require_idle(view: View, request: gr.Request) -> None:
    """Raises gr.Error while an answer is being written."""
    if view.is_answering:
        raise toast("still_writing", request)
