"""The race: the same prompt answered without and with drafting, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from ..assistant import Assistant
from ..core.conversation import Turn
from ..core.prefill_progress import PrefillProgress
from ..core.race_state import RaceState
from ..core.receipt import first_difference
from ..core.settings import Settings
from ..core.values import text_of
from ..i18n.translations import Words, translate, words_of
from . import rendering
from .buttons import HIDDEN, toggled
from .error_toast import errors_as_toasts, toast
from .event_options import ANSWERING, QUEUED
from .examples import EXAMPLES
from .redraw import Redraw

START = Turn(EXAMPLES[1].prompt)


class Race:
    """Adds its components to the current block."""

    def __init__(self, assistant: Assistant) -> None:
        self._assistant = assistant
        self._about = gr.HTML(elem_id="race-about")
        with gr.Row(elem_id="race-entry"):
            self._prompt = gr.Textbox(
                START.prompt, label=translate("race_prompt"), lines=3, max_lines=8, elem_id="race-prompt"
            )
            self._start = gr.Button(translate("race_start"), variant="primary", scale=0, min_width=90, elem_id="start")
            self._stop = gr.Button(
                translate("stop"), variant="stop", scale=0, min_width=90, visible=HIDDEN, elem_id="race-stop"
            )
        self._lanes = gr.HTML(elem_id="lanes")

    def connect(self, blocks: gr.Blocks, settings: list[Any]) -> None:
        """`settings` are the components of all fields of `Settings`, in their order."""
        blocks.load(self._described, None, self._about, **QUEUED)
        buttons = [self._start, self._stop]
        raced = self._start.click(
            self._run, [self._prompt, *settings], [self._lanes, *buttons], preprocess=False, **ANSWERING
        )
        raced.then(lambda: toggled(True, False), None, buttons, **QUEUED)
        self._stop.click(self._end, None, None, **QUEUED)

    def _described(self, request: gr.Request) -> str:
        return f"<p>{words_of(request)('race_about')}</p>"

    def _end(self, request: gr.Request) -> None:
        self._assistant.stop(str(request.session_hash))

    def _run(self, request: gr.Request, prompt: str, mode: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        words, redraw = words_of(request), Redraw()
        with errors_as_toasts(request):
            if mode == "off":
                raise toast("race_plain", request)
            if "off" not in self._assistant.pipeline.modes:
                raise toast("race_always_drafts", request)
            asked, settings = Turn(text_of(prompt)), Settings.of(mode, *values).seeded()
            yield lanes_html(RaceState(asked, asked), mode, words), *toggled(False, True)
            try:
                for state in self._assistant.race(asked, settings, str(request.session_hash)):
                    plain, drafted = state.plain, state.drafted
                    if redraw.is_due(drafted.complete or (plain.complete and not drafted.token_ids)):
                        start = gr.Button(translate("race_again" if state.disturbed else "race_start"), visible=HIDDEN)
                        yield lanes_html(state, mode, words), start, gr.skip()
            except Exception:  # after an error, what waits for the end of this event may not run
                yield "", *toggled(True, False)
                raise


def lanes_html(state: RaceState, mode: str, words: Words) -> str:
    """Both answers, and the comparison of their times once both are complete."""
    plain, drafted, prefill = state.plain, state.drafted, state.prefill
    lanes = _lane_html(plain, words("mode_off"), None if plain.complete else prefill, words)
    lanes += _lane_html(drafted, words(f"mode_{mode}"), prefill if plain.complete else None, words)
    note = f'<p class="disturbed" role="alert">{words("race_disturbed")}</p>' if state.disturbed else ""
    return f'<div class="lanes">{lanes}</div>{_verdict_html(state, words)}{note}'


def _lane_html(turn: Turn, name: str, prefill: PrefillProgress | None, words: Words) -> str:
    if turn.complete:
        line = rendering.figures_html(turn, words)
    else:
        count = len(turn.token_ids)
        said = words.count(count, "token", "tokens") if count else words("race_waits")
        said = rendering.prefill_html(prefill, words) if prefill else said
        line = f'<div class="figures"><span>{said}</span></div>'
    return f"<section><h3>{name}</h3>{rendering.coloured_html(turn.spans)}{line}</section>"


def _verdict_html(state: RaceState, words: Words) -> str:
    plain, drafted = state.plain, state.drafted
    if plain.stats is None or drafted.stats is None:
        return ""
    differs_at = first_difference(plain.token_ids, drafted.token_ids)
    times = {"plain": rendering.duration(plain.stats.total_s), "drafted": rendering.duration(drafted.stats.total_s)}
    if differs_at is not None:
        line = words("race_other", place=f"{differs_at + 1:,}", **times)
    elif state.disturbed:
        line = words("race_same_tokens", count=f"{len(plain.token_ids):,}", **times)
    else:
        ratio = plain.stats.total_s / drafted.stats.total_s if drafted.stats.total_s else 1.0
        line = words("race_same", count=f"{len(plain.token_ids):,}", ratio=rendering.speedup(ratio, words), **times)
    return f'<p class="verdict" role="status">{line}</p>'
