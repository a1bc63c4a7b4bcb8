"""Gradio's application with the gate around it."""

from __future__ import annotations

from gradio.routes import App, ORJSONResponse
from starlette.types import ASGIApp

from ...server.access import Access
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
