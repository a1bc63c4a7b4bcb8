"""The look of the page: system fonts, greys, and one accent colour. Nothing is downloaded for it."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

STYLE_SHEET = Path(__file__).with_name("page.css")
SCRIPT = Path(__file__).with_name("page.js")
TEXT_FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Noto Sans", "sans-serif"]
CODE_FONTS = ["ui-monospace", "SF Mono", "Cascadia Code", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace"]
FAINT, FAINT_IN_DARK = "#4f5d70", "#a3b1c6"  # with the contrast of 4.5 that WCAG requires
ICON = (
    "data:image/svg+xml,"
    "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E"
    "%3Crect width='32' height='32' rx='8' fill='%230f766e'/%3E"
    "%3Cpath d='M7 21l7-10 5 7 3-4 4 7' fill='none' stroke='white' stroke-width='2.6' "
    "stroke-linecap='round' stroke-linejoin='round'/%3E%3C/svg%3E"
)
HEAD = f'<link rel="icon" href="{ICON}"><meta name="color-scheme" content="light dark">'


def theme() -> gr.themes.Base:
    return gr.themes.Base(
        primary_hue="teal",
        neutral_hue="slate",
        font=TEXT_FONTS,
        font_mono=CODE_FONTS,
        radius_size="lg",
        text_size="md",
    ).set(
        body_text_color_subdued=FAINT,
        body_text_color_subdued_dark=FAINT_IN_DARK,
        block_info_text_color=FAINT,
        block_info_text_color_dark=FAINT_IN_DARK,
        input_placeholder_color=FAINT,
        input_placeholder_color_dark=FAINT_IN_DARK,
        body_background_fill="#f8fafc",
        body_background_fill_dark="#0b1120",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_shadow="none",
        block_padding="0px",
        input_background_fill="white",
        input_background_fill_dark="#111827",
        input_shadow="none",
        button_primary_background_fill="#0f766e",
        button_primary_background_fill_dark="#0f766e",
        button_primary_background_fill_hover="#115e59",
        button_primary_background_fill_hover_dark="#115e59",
        button_primary_text_color="white",
        button_cancel_background_fill="#b91c1c",
        button_cancel_background_fill_dark="#b91c1c",
        button_cancel_background_fill_hover="#991b1b",
        button_cancel_background_fill_hover_dark="#dc2626",
        button_cancel_text_color="white",
        button_cancel_text_color_dark="white",
    )
