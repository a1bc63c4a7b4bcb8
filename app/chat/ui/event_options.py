"""Options of Gradio events that the components of the page share."""

from __future__ import annotations

from typing import Any

QUEUED: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
QUICK = QUEUED | {"queue": False}  # only for events that raise no gr.Error: Gradio shows those of queued events only
ANSWERING = QUEUED | {"concurrency_id": "answer", "concurrency_limit": 8}
