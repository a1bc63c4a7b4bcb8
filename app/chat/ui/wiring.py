"""The components that several others read or update, and the event sequences that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from .chat_events import ChatEvents
from .event_options import ANSWERING, QUEUED, QUICK, TURNS

if TYPE_CHECKING:
    from .composer import Composer


@dataclass(frozen=True, slots=True)
class Wiring:
    """settings: the components of all fields of `Settings`, in their order.

    refresh: arguments of an event that updates what depends on the kept conversations: the list, the figures.
    """

    events: ChatEvents
    view: gr.State
    coloured: gr.Checkbox
    chatbot: gr.Chatbot
    composer: Composer
    meter: gr.HTML
    settings: list[Any]
    refresh: dict[str, Any]

    @property
    def seen(self) -> list[Any]:
        """The inputs of most events of `ChatEvents`."""
        return [self.view, self.coloured]

    @property
    def shown(self) -> list[Any]:
        """The outputs of events that change the view."""
        return [self.view, self.chatbot, *self.composer.buttons]

    def answer_on(self, trigger: Callable[..., Any], begin: Callable[..., Any], inputs: Sequence[Any] = ()) -> None:
        """When `trigger` fires, add the turn that `begin` makes and write its answer."""
        entry = self.composer.outputs
        begun = trigger(begin, [*inputs, *self.seen, *self.settings], [*entry, *self.shown], preprocess=False, **TURNS)
        begun.success(**self.refresh)
        outputs = [self.view, self.chatbot, self.composer.returned, self.meter]
        shown = {"show_progress_on": self.chatbot}  # which disables its buttons meanwhile
        answered = begun.success(self.events.answer, self.seen, outputs, **ANSWERING | shown)
        left = [self.composer.box, self.composer.entry, self.composer.returned]
        answered.then(self.composer.take_back, left, [*entry, self.composer.returned], **QUEUED)
        self.render_on(answered.then)

    def render_on(self, trigger: Callable[..., Any]) -> None:
        """When `trigger` fires, render the conversation and the buttons as the view has them."""
        rendered = trigger(self.events.render_with_buttons, self.seen, [self.chatbot, *self.composer.buttons], **QUICK)
        rendered.then(**self.refresh)
