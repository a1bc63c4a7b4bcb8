"""Gradio's application with the gate around it, and the server that it runs in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from gradio import http_server
from gradio.routes import App, ORJSONResponse
from starlette.types import ASGIApp

from ...server.access import Access
from ...server.limits import Limits
from ...server.protocol import config_of
from .gate import PageGate
from .uploads import Uploads


class GatedApp(App):
    """The application that `launch` serves. Middleware that is passed to Gradio would run after Gradio's own."""

    def __init__(self, access: Access, uploads: Uploads) -> None:
        super().__init__(default_response_class=ORJSONResponse)
        self._access = access
        self._uploads = uploads

    def build_middleware_stack(self) -> ASGIApp:
        return PageGate(super().build_middleware_stack(), self._access, self._uploads)


_launching = threading.Lock()


@contextmanager
def bounded_connections(limits: Limits) -> Iterator[None]:
    """Within the block, Gradio launches its server with these limits. It has no option for that."""
    gradio: Any = http_server
    with _launching:
        kept = gradio.uvicorn
        gradio.uvicorn = SimpleNamespace(Config=lambda app, **options: config_of(app, limits, **options))
        try:
            yield
        finally:
            gradio.uvicorn = kept
