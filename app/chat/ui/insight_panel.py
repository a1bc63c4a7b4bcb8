"""The statistics of drafting: acceptance by depth, draft lengths, and tokens by drafter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gradio as gr

from ..assistant import Assistant
from ..core.insight import Insight
from ..i18n.translations import IN_ENGLISH, Words, words_of
from .event_options import QUICK
from .rendering import SOURCES

LIVE_S = 0.5  # the interval of updates while the tab is open


class InsightPanel:
    """Adds its components to the current block. Includes answers that are being written while its tab is open."""

    def __init__(self, assistant: Assistant) -> None:
        self._assistant = assistant
        self.tables = gr.HTML(elem_id="insight")
        self._clock = gr.Timer(LIVE_S, active=False)

    def connect(self, tab: gr.Tab, others: Iterable[gr.Tab]) -> None:
        tab.select(lambda: gr.Timer(active=True), None, self._clock, **QUICK)
        gr.on([other.select for other in others], lambda: gr.Timer(active=False), None, self._clock, **QUICK)
        gr.on([tab.select, self._clock.tick], self._followed, self.tables, self.tables, **QUICK)

    def drawn(self, request: gr.Request) -> str:
        return insight_html(self._assistant.insight, words_of(request))

    def _followed(self, shown: str, request: gr.Request) -> Any:
        now = self.drawn(request)
        return gr.skip() if now == shown else now


def insight_html(insight: Insight, words: Words = IN_ENGLISH) -> str:
    """Three tables with bars: acceptance by depth, drafted tokens for a pass, tokens by drafter."""
    about = f"<p>{words('insight_about')}</p>"
    if not insight.drafted:
        return f"{about}<p>{words('insight_none')}</p>"
    depths = [
        (str(depth), insight.accepted[depth] / tested, f"{insight.accepted[depth]:,} / {tested:,}")
        for depth, tested in sorted(insight.tested.items())
    ]
    passes = insight.lengths.total()
    lengths = [(str(length), count / passes, f"{count:,}") for length, count in sorted(insight.lengths.items())]
    drafters = [
        (words(f"from_{source}"), count / insight.drafted.total(), f"{count:,}")
        for source, count in insight.drafted.most_common()
        if source in SOURCES
    ]
    tables = (
        _table_html(words("insight_depth"), words("depth"), words("accepted_of"), depths),
        _table_html(words("insight_length"), words("drafted_per_pass"), words("passes_head"), lengths),
        _table_html(words("insight_who"), words("drafter"), words("tokens_head"), drafters),
    )
    return f'{about}<div class="tables">{"".join(tables)}</div>'


def _table_html(caption: str, first: str, last: str, rows: Iterable[tuple[str, float, str]]) -> str:
    """`rows` have a name, a share from 0 to 1, and a count."""
    lines = "".join(
        f'<tr><th scope="row">{name}</th><td class="bar"><i style="width: {100 * share:.0f}%"></i></td>'
        f"<td>{share:.0%}</td><td>{count}</td></tr>"
        for name, share, count in rows
    )
    head = f'<tr><th scope="col">{first}</th><th></th><th></th><th scope="col">{last}</th></tr>'
    return f"<table><caption>{caption}</caption><thead>{head}</thead><tbody>{lines}</tbody></table>"
