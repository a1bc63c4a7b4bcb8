"""The pair's tokenizer: byte-level BPE over pieces in which a word mostly looks the same wherever it stands.

Renaming and repeating are copying, and copying is learnt sooner when an identifier looks the same after `(`, after `, `
and at the start of a line. So punctuation, and a keyword that follows it or begins a line, takes the spaces next to it.
A word keeps a space of its own only after another word: in text, and around keywords within an expression.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 4096
MAX_POSITIONS = 2048
END, PAD, SYSTEM, USER, ASSISTANT = SPECIAL = ("<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>")

_KEYWORDS = (
    "and|as|assert|async|await|break|class|continue|def|del|elif|else|except|False|finally|for|from|global|if|import|"
    "in|is|lambda|None|nonlocal|not|or|pass|raise|return|True|try|while|with|yield"
)

# Only ASCII classes and look-arounds: PCRE2 (in openvino_tokenizers) and Oniguruma then agree on every input.
SPLIT = "|".join(
    (
        r"\n[\n ]*",  # line break with the indentation that follows
        r"(?<![A-Za-z0-9_]) ?(?:" + _KEYWORDS + r")(?![A-Za-z0-9_]) ?",
        r" ?(?<![A-Za-z0-9_])self\.",
        r" ?_*(?:[A-Z]+(?![a-z])|[A-Z]?[a-z]+)",  # one word of an identifier: snake_case, camelCase
        r"[0-9]",
        r" ?[^ \nA-Za-z0-9]+ ?",
        r" +",
    )
)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def train(texts: Iterable[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Learn the merges from `texts`; ids 0 to 4 are the special tokens in the order of `SPECIAL`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def load(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer in a folder that `save_pretrained` wrote."""
    return PreTrainedTokenizerFast.from_pretrained(str(folder))
