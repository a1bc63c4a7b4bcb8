"""How turns become HTML and Markdown."""

from __future__ import annotations

import html
import re

import gradio as gr
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.app.bench.labels import LABELS
from outrider.app.chat.core.conversation import Turn, messages
from outrider.app.chat.core.prefill_progress import PrefillProgress
from outrider.app.chat.core.receipt import Receipt
from outrider.app.chat.core.settings import Settings
from outrider.app.chat.core.time_saved import TimeSaved
from outrider.app.chat.i18n.translations import CATALOGUES, Words
from outrider.app.chat.store.history import Node
from outrider.app.chat.ui.rendering import (
    answer_html,
    chat_messages,
    coloured_html,
    duration,
    figures_html,
    figures_of,
    legend_html,
    prefill_html,
    prompt_html,
    receipt_html,
    speedup,
)
from outrider.app.chat.ui.theme import STYLE_SHEET
from outrider.pipelines import InvalidOption, Piece, Span, Statistics
from outrider.pipelines.engine.trace import TARGET
from outrider.pipelines.speculation.drafters.base import EARLIER_TURN
from outrider.pipelines.speculation.drafters.draft_model import DraftModel
from outrider.pipelines.speculation.drafters.grammar import Grammar
from outrider.pipelines.speculation.drafters.head import Head
from outrider.pipelines.speculation.drafters.prompt_lookup import PromptLookup
from outrider.pipelines.speculation.drafters.recycling import TokenRecycling
from outrider.pipelines.speculation.drafters.retrieval import Retrieval
from outrider.pipelines.speculation.drafters.self_speculative import EXIT, SKIPPING
from outrider.pipelines.speculation.drafters.suffix import Suffix

DRAFTERS = (PromptLookup, Suffix, TokenRecycling, Retrieval, DraftModel, Head, Grammar)
SOURCES = ("target", "prompt_lookup", "draft_model")
spans = st.lists(st.builds(Span, st.text(alphabet="ab<&\"' \t\n`*_$\\é🙂"), st.sampled_from(SOURCES)))


def text_of(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", markup))


@given(spans)
def test_colouring_changes_no_character(written: list[Span]) -> None:
    assert text_of(coloured_html(written)) == "".join(span.text for span in written)


@given(spans)
def test_colouring_marks_every_visible_character_with_its_source(written: list[Span]) -> None:
    marked = re.findall(r'<span class="from-(\w+)">(.*?)</span>', coloured_html(written))
    for source in SOURCES:
        seen = "".join(html.unescape(text) for name, text in marked if name == source)
        meant = "".join(span.text for span in written if span.source == source)
        assert "".join(seen.split()) == "".join(meant.split())


@given(spans)
def test_no_markup_holds_a_line_end_which_would_end_it_in_markdown(written: list[Span]) -> None:
    assert "\n" not in coloured_html(written)


def test_indents_are_not_marked_however_the_tokens_cut_them() -> None:
    written = [Span("if x:\n", "target"), Span("  ", "draft_model"), Span("  return", "prompt_lookup")]
    assert coloured_html([*written, Span(" y", "target")]) == (
        '<pre class="answer"><span class="from-target">if x:</span>&#10;    '
        '<span class="from-prompt_lookup">return</span><span class="from-target"> y</span></pre>'
    )


def test_tabs_are_kept() -> None:
    """Gradio expands those that it finds, to the stops of a line with all tags."""
    code = "func f() {\n\tif x {\n\t\ty()\n\t}\n}"
    for text, prompt, coloured in ((f"```go\n{code}\n```", "a", False), (code, code, True)):
        node = Node(1, None, Turn(prompt, spans=(Span(text, TARGET),), finish_reason="stop"), (1,))
        shown = gr.Chatbot().postprocess(chat_messages([node], coloured))
        for message, said in zip(shown.root, (prompt, text), strict=True):
            assert text_of(message.content[0].text).count("\t") == said.count("\t")


def test_a_receipt_without_a_time_is_told_without_a_speedup() -> None:
    for plain_s, drafted_s in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0)):
        receipt = Receipt(1, None, plain_s, drafted_s)
        assert receipt.ratio is None
        assert "receipt same" in receipt_html(receipt)


def test_reasoning_is_folded_before_the_answer() -> None:
    answer = '<div class="answer-text"><p>Four.</p></div>'
    assert answer_html("<think>\nAdd *two*.\n</think>\n\nFour.") == (
        '<details class="thoughts"><summary>Reasoning</summary>'
        f'<div class="answer-text"><p>Add <em>two</em>.</p></div></details>{answer}'
    )
    assert answer_html("<think>\n\n</think>\n\nFour.") == answer
    unfinished = answer_html("<think>Add <b>")
    assert unfinished.startswith('<details class="thoughts" open>'), "what someone reads does not shut"
    assert unfinished.endswith("<p>Add &lt;b&gt;</p></div></details>")
    assert "details" not in answer_html("Such a <think>tag</think>.")


def test_bare_code_becomes_a_highlighted_block_and_prose_is_rendered() -> None:
    assert '<code class="language-python"><span class="hl-k">def</span>' in answer_html("def f():\n    pass\n")
    assert answer_html("Some *prose*.") == '<div class="answer-text"><p>Some <em>prose</em>.</p></div>'
    assert text_of(answer_html("Here:\n```python\nx = 1\n\ny = 2\n```\n")) == "Here:x = 1\n\ny = 2"


@given(st.text(alphabet="ab<>&\"' \t\n`*_#[](){}!|-~\\/:.é🙂", max_size=60))
def test_no_tag_but_those_of_markdown_comes_out_of_an_answer(text: str) -> None:
    rendered = answer_html(text)
    assert "\n" not in rendered
    allowed = "div p br hr em strong s code pre a span ul ol li blockquote h1 h2 h3 h4 h5 h6 table thead tbody tr th td"
    assert set(re.findall(r"</?([a-z0-9]+)", rendered)) <= set(allowed.split())
    classes = set(re.findall(r'class="([^"]*)"', rendered))
    assert all(re.fullmatch(r"answer-text|block|address|wide|language-python|hl-[a-z0-9]+", name) for name in classes)


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "data:text/html,x", "/logout", "//other.example", "file:///x", "https:", "#x"]
)
def test_a_link_that_leads_nowhere_safe_stays_text(address: str) -> None:
    rendered = answer_html(f"[click]({address}) ![see]({address})")
    assert "<a " not in rendered
    assert text_of(rendered) == f"[click]({address}) ![see]({address})"


def test_a_link_says_where_it_leads_and_an_image_is_not_loaded() -> None:
    rendered = answer_html("[docs](https://a.example/b) ![chart](https://c.example/d.png)")
    assert 'href="https://a.example/b" target="_blank" rel="noopener noreferrer nofollow"' in rendered
    assert "<img" not in rendered
    assert text_of(rendered) == "docs (https://a.example/b) chart (https://c.example/d.png)"


@pytest.mark.parametrize(
    "prompt",
    [
        "Rename it:\ndef f(x):\n    return x",
        "Rename it:\n\n```python\ndef f(x):\n    return x\n```",
        "Rename it:\n```\ndef f(x):\n    return x",
    ],
)
def test_the_code_in_a_prompt_is_set_apart(prompt: str) -> None:
    assert prompt_html(prompt) == ('<p class="said">Rename it:</p><pre class="code">def f(x):&#10;    return x</pre>')


def test_a_prompt_that_only_mentions_code_is_no_code() -> None:
    assert prompt_html("import os, or not?") == '<p class="said">import os, or not?</p>'


def test_a_turn_grows_by_pieces_and_merges_neighbours_of_one_source() -> None:
    stats = Statistics(5, 0, 3, 2, 4, 1, {"suffix": 4}, {"suffix": 1}, 0.1, 10.0, 0.2, 0.0, 0.3)
    turn = Turn("Say it.")
    turn = turn.extended(Piece("a", (1,), ("target",), (Span("a", "target"),)))
    both = (Span("b", "target"), Span("c", "draft_model"))
    turn = turn.extended(Piece("bc", (2, 3), ("target", "draft_model"), both))
    assert not turn.complete
    turn = turn.extended(Piece("", (), (), (), "stop", stats))
    assert turn.spans == (Span("ab", "target"), Span("c", "draft_model"))
    assert (turn.text, turn.complete, turn.stats) == ("abc", True, stats)


def test_the_model_sees_complete_turns_and_the_prompt_that_is_due() -> None:
    done = Turn("One?", spans=(Span("1", "target"),), finish_reason="stop")
    assert messages([done, Turn("Two?")]) == [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "Two?"},
    ]


def test_each_turn_is_two_messages_of_the_chat() -> None:
    done = Turn("One?", spans=(Span("1", "target"),), finish_reason="length")
    shown = chat_messages([Node(1, None, done, (1,)), Node(2, 1, Turn("Two?"), (2,))], coloured=True)
    assert [message["role"] for message in shown] == ["user", "assistant"] * 2
    assert "stopped at the length limit" in shown[1]["content"]
    assert "waiting" in shown[3]["content"]


def test_figures_tell_what_matters_and_the_seed_only_where_it_decides() -> None:
    stats = Statistics(5, 0, 1, 1, 0, 0, {}, {}, 0.1, None, 0.1, 0.0, 0.1)
    turn = Turn("One?", Settings(mode="off", seed=7), finish_reason="stop", stats=stats)
    assert figures_of(turn) == ["Plain", "1 token", "1 pass", "no drafting"]
    sampled = Turn("One?", Settings(mode="draft", temperature=1.0, seed=7), finish_reason="stop", stats=stats)
    assert figures_of(sampled)[:2] == ["Draft model", "seed 7"]


def test_the_legend_names_only_what_the_pair_can_do() -> None:
    assert text_of(legend_html(("off", "lookup"))) == "Tokens from the modelprompt lookup"
    assert "draft_model" in legend_html(("off", "lookup", "draft"))


def test_a_temperature_of_zero_and_a_top_k_of_zero_mean_greedy_and_no_limit() -> None:
    options = Settings(temperature=0, top_k=0).options()
    assert options["do_sample"] is False
    assert options["top_k"] is None
    assert (
        Settings(temperature=0.1, top_k=5).options() | {"do_sample": True, "top_k": 5}
        == Settings(temperature=0.1, top_k=5).options()
    )


def test_an_emptied_seed_is_refused() -> None:
    with pytest.raises(InvalidOption, match="seed"):
        Settings(seed=None).options()


@pytest.mark.parametrize("source", [TARGET, *(each.name for each in DRAFTERS), EARLIER_TURN, SKIPPING, EXIT])
def test_whoever_proposes_a_token_has_a_name_in_both_languages_and_a_look(source: str) -> None:
    for name in (f"from_{source}", f"from_{source}_hint"):
        assert CATALOGUES["en"][name] != CATALOGUES["zh"][name]
    assert source in LABELS
    for sheet in (STYLE_SHEET, STYLE_SHEET.parents[2] / "bench" / "report.css"):
        look = re.search(rf"^(\.from-\w+, )*\.from-{source}\b", sheet.read_text(encoding="utf-8"), re.MULTILINE)
        assert look or source == TARGET


def test_what_a_form_forced_is_marked_and_named() -> None:
    time_saved = TimeSaved(80.0, {"grammar": 2.0}, {"grammar": 100.0})
    turn = Turn("One?", spans=(Span("{", "grammar"),), finish_reason="stop", time_saved=time_saved)
    assert '<span class="from-grammar">{</span>' in coloured_html(turn.spans)
    assert "required format60 ms saved" in text_of(legend_html(("off",), turns=[turn]))


@pytest.mark.parametrize(("spread_ms", "is_told"), [(5.0, True), (40.0, False)])
def test_what_was_saved_is_told_only_where_it_is_outside_the_noise(spread_ms, is_told) -> None:
    time_saved = TimeSaved(80.0, {"grammar": 2.0}, {"grammar": 100.0}, spread_ms)
    turn = Turn("One?", spans=(Span("{", "grammar"),), finish_reason="stop", time_saved=time_saved)
    assert ("60 ms saved" in text_of(figures_html(turn))) is is_told
    legend = text_of(legend_html(("off",), turns=[turn]))
    assert ("60 ms saved" in legend) is is_told
    assert "required format" in legend


def test_the_bar_of_a_prompt_begins_with_what_is_read() -> None:
    assert prefill_html(PrefillProgress(0, 3000)) == "Reading 3,000 tokens"
    assert 'max="3000" value="1500"' in prefill_html(PrefillProgress(1500, 3000))
    assert text_of(prefill_html(PrefillProgress(1500, 3000), Words("zh"))) == "已读取 1,500 / 3,000 个词元（50%）"


@pytest.mark.parametrize(
    ("ratio", "said"), [(1.0, "no faster"), (1.04, "no faster"), (2.14, "2.1x faster"), (0.5, "2.0x slower")]
)
def test_a_speedup_is_said_as_people_say_it(ratio: float, said: str) -> None:
    assert speedup(ratio, Words("en")) == said


@pytest.mark.parametrize(("seconds", "said"), [(0.054, "54 ms"), (1.37, "1.37 s"), (2.247, "2.2 s")])
def test_a_time_is_said_in_the_unit_that_it_is_read_in(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("words", "told"), [(Words("en"), "lossy (threshold)"), (Words("zh"), "有损（阈值接受）")], ids=["en", "zh"]
)
def test_a_lossy_answer_is_marked_and_plain_or_exact_ones_are_not(words: Words, told: str) -> None:
    turn = Turn("One?", Settings(mode="draft", acceptance="threshold"), finish_reason="stop")
    assert figures_of(turn, words)[1] == told
    assert told in figures_html(turn, words)
    for settings in (Settings(mode="off", acceptance="threshold"), Settings(mode="draft")):
        assert told not in figures_html(Turn("One?", settings, finish_reason="stop"), words)


def test_acceptance_reaches_the_pipeline_only_where_something_is_drafted() -> None:
    assert Settings(acceptance="typical").options()["acceptance"] == "typical"
    assert "acceptance" not in Settings(mode="off", acceptance="typical").options()
    assert "acceptance" not in Settings().options()
    with pytest.raises(InvalidOption, match="exact, typical, threshold, rejection"):
        Settings.read({"acceptance": "generous"})
