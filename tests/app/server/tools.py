"""The embedded pair with a chat template that knows tools."""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path

# The template of the embedded pair, and before it the tools and among the messages the calls, in Hermes' form.
TEMPLATE = (
    "{%- if tools %}{{- '<|system|>' -}}{%- for tool in tools %}{{- tool | tojson -}}{%- endfor -%}"
    "{{- 'Answer with <tool_call></tool_call><|end|>' -}}{%- endif -%}"
    "{%- for message in messages -%}{{- '<|' + message['role'] + '|>' + message['content'] -}}"
    "{%- for call in message['tool_calls'] or [] -%}{{- '<tool_call>' -}}{{- call['function'] | tojson -}}"
    "{{- '</tool_call>' -}}{%- endfor -%}{{- '<|end|>' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def pair_with_tools(embedded_pair: Path, pair: Path) -> Path:
    """A copy of the pair at `pair`."""
    shutil.copytree(embedded_pair, pair)
    tokenizer = pair / "target" / "openvino_tokenizer.xml"
    text, count = re.subn(
        r'<chat_template value="[^"]*"', lambda _: f'<chat_template value="{html.escape(TEMPLATE)}"',
        tokenizer.read_text(encoding="utf-8"),
    )  # fmt: skip
    assert count == 1
    tokenizer.write_text(text, encoding="utf-8")
    return pair
