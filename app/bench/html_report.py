"""The report as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from outrider.pipelines import EXACT

from . import plots
from .about import in_words
from .labels import LABELS
from .report import Report, Sample
from .table import COLUMNS, HOW, caption


def page(report: Report) -> str:
    """The page, including style and plots."""
    style = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><title>Outrider benchmark</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{style}</style></head><body>",
            "<h1>Outrider benchmark</h1>",
            *(f'<p class="about">{escape(line)}</p>' for line in in_words(report.about)),
            f'<p class="about">{escape(HOW.format(seed=report.seed))}</p>',
            *_warnings(report),
            *_figure("Speed", "Tokens per second, with quartiles.", plots.speed(report)),
            "<h2>Figures</h2>",
            *_tables(report),
            *_figure("Acceptance", "How often a token was kept where all before it were.", plots.depth(report)),
            *_figure("Cost of a pass", "Over a context of 256 tokens, as measured.", plots.cost(report)),
            "<h2>Who proposed what</h2>",
            *_key(report.samples),
            *map(_sample, report.samples),
            "</body></html>",
            "",
        ]
    )


def _warnings(report: Report) -> Iterable[str]:
    for entry in report.entries:
        if entry.differing:
            yield (
                f'<p class="wrong">Different text: {escape(entry.family)}, mode {escape(entry.mode)}, '
                f"{entry.differing} of {entry.num_prompts} prompts.</p>"
            )
    if report.num_differing and not report.exact:
        yield "<p>Exactness is off here, so drafting may change the text: --exact asks for it.</p>"
    if report.acceptance != EXACT:
        yield f'<p class="wrong">Lossy: with acceptance {escape(report.acceptance)}, drafts may change the text.</p>'
    yield from (f"<p>{escape(note)}</p>" for note in report.notes)


def _tables(report: Report) -> Iterable[str]:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("mode", *(name for name, _ in COLUMNS)))
    for family in report.families:
        entries = [entry for entry in report.entries if entry.family == family]
        yield f'<div class="scroll"><table><caption>{escape(caption(entries))}</caption>'
        yield f"<tr>{head}</tr>"
        for entry in entries:
            cells = "".join(f"<td>{escape(text)}</td>" for text in (entry.mode, *(cell(entry) for _, cell in COLUMNS)))
            yield f'<tr class="wrong">{cells}</tr>' if entry.differing else f"<tr>{cells}</tr>"
        yield "</table></div>"


def _figure(title: str, caption: str, svg: str) -> Iterable[str]:
    if svg:
        yield f"<h2>{title}</h2><figure>{svg}<figcaption>{caption}</figcaption></figure>"


def _key(samples: Iterable[Sample]) -> Iterable[str]:
    for source in dict.fromkeys(source for sample in samples for _, source in sample.spans):
        label = escape(LABELS.get(source, source))
        yield f'<span class="key"><span class="from-{escape(source)}">{label}</span></span>'


def _sample(sample: Sample) -> str:
    spans = "".join(f'<span class="from-{escape(source)}">{escape(text)}</span>' for text, source in sample.spans)
    return f"<p>{escape(sample.family)}, mode {escape(sample.mode)}</p><pre>{spans}</pre>"
