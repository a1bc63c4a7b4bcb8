"""An answer's Markdown as HTML with text, formatting, and links whose address is visible, but nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from html import escape
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

SCHEMES = ("http", "https", "mailto")
LARGEST = 20_000  # characters; some texts take time with the square of their length
# The languages that are highlighted, and the longest code: most lexers take time with the square of the length of some
# code, such as one word repeated. Each further lexer has many patterns that would run on untrusted text.
LANGUAGES = {
    10_000: "bash css go json kotlin php r ruby rust sh sql swift toml",
    4_000: "html javascript js py python xml yaml",
    2_000: "c cpp diff java ts typescript",
}
LARGEST_COLOURED = {language: largest for largest, names in LANGUAGES.items() for language in names.split()}


class _Renderer(RendererHTML):
    """Renders no class, style or other attribute from the text, and no blank lines."""

    def fence(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        return code_html(tokens[index].content, tokens[index].info.strip().partition(" ")[0].lower())

    def code_block(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        return code_html(tokens[index].content)

    def code_inline(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        return f"<code>{verbatim(tokens[index].content)}</code>"

    def text(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        return verbatim(tokens[index].content)

    def link_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        href = verbatim(str(tokens[index].attrs["href"]))
        return f'<a href="{href}" target="_blank" rel="noopener noreferrer nofollow">'

    def link_close(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        opening = next(place for place in range(index, -1, -1) if tokens[place].type == "link_open")
        address = str(tokens[opening].attrs["href"])
        said = "".join(token.content for token in tokens[opening:index])
        return "</a>" + ("" if said == address else _address_html(address))

    def table_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        return f'<div class="wide" dir="auto">{self.renderToken(tokens, index, options, env)}'

    def table_close(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        return f"{self.renderToken(tokens, index, options, env)}</div>"

    def bullet_list_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        tokens[index].attrSet("dir", "auto")  # its marks are on the side at which its text begins
        return self.renderToken(tokens, index, options, env)

    ordered_list_open = blockquote_open = bullet_list_open

    def image(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        """Its description and its address: loading it would tell its server that it was seen."""
        return verbatim(tokens[index].content) + _address_html(str(tokens[index].attrs["src"]))


def _leads_out(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme.lower() in SCHEMES and bool(parts.netloc or (parts.scheme.lower() == "mailto" and parts.path))


_MARKDOWN = MarkdownIt("commonmark", {"html": False, "breaks": True}, renderer_cls=_Renderer)
_MARKDOWN.enable(["table", "strikethrough"])
_MARKDOWN.validateLink = _leads_out  # type: ignore[method-assign]
_FORMATTER = HtmlFormatter(nowrap=True, classprefix="hl-")


@lru_cache(maxsize=256)  # the whole chat is rendered for every piece of its last answer
def markdown_html(text: str) -> str:
    """On one line, since Gradio would parse HTML after a blank line as Markdown."""
    body = code_html(text) if len(text) > LARGEST else _MARKDOWN.render(text).replace("\n", "")
    return f'<div class="answer-text">{body}</div>'


def code_html(code: str, language: str = "") -> str:
    """A block of code, highlighted if its language and length are in LARGEST_COLOURED."""
    code = code.rstrip("\n")
    if language in LARGEST_COLOURED and len(code) <= LARGEST_COLOURED[language]:
        return f'<pre class="block"><code class="language-{language}">{_highlighted(code, language)}</code></pre>'
    return f'<pre class="block"><code>{verbatim(code)}</code></pre>'


@lru_cache(maxsize=256)  # of a growing answer, only the last block changes
def _highlighted(code: str, language: str) -> str:
    lexer = get_lexer_by_name(language, stripnl=False)  # adds a line end, without which some see no comment
    return _on_one_line(str(highlight(code, lexer, _FORMATTER)).rstrip("\n"))


def verbatim(text: str) -> str:
    """Escaped for HTML inside Markdown."""
    return _on_one_line(escape(text))


def _on_one_line(html: str) -> str:
    """Without line ends, since a blank line would end the HTML block, and without tabs, which Gradio expands to the
    stops of that line."""
    return html.replace("\r", "&#13;").replace("\n", "&#10;").replace("\t", "&#9;")


def _address_html(address: str) -> str:
    return f' <span class="address">({verbatim(address)})</span>'
