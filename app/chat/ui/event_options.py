"""Options of Gradio events that the components of the page share."""

from __future__ import annotations

from typing import Any

# No component shows progress: otherwise Gradio updates every one that events have ever had as an output, and all that
# is in it, with each part of an answer.
QUEUED: dict[str, Any] = {"show_progress": "hidden", "show_progress_on": [], "api_visibility": "private"}
QUICK = QUEUED | {"queue": False}  # only for events that raise no gr.Error: Gradio shows those of queued events only
# Events that change which turns a window shows, in the order in which they were asked for: otherwise a prompt that is
# sent right after "New" would go to the conversation before.
TURNS = QUEUED | {"concurrency_id": "turns", "concurrency_limit": 1}
ANSWERING = QUEUED | {"concurrency_id": "answer", "concurrency_limit": 8}
