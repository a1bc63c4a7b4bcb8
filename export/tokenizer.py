"""Converts tokenizers of transformers to OpenVINO, and compares the two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino as ov

from outrider.pipelines.text.tokenizer import Tokenizer

from .checkpoint import Checkpoint
from .errors import TokenizerNotConverted
from .quiet import quiet

SAMPLES = (
    "The quick brown fox jumps over the lazy dog.",
    "def mean(values: list[float]) -> float:\n    '''The mean.'''\n    return sum(values) / len(values)\n",
    "  two leading spaces, a\ttab and 3.14159\r\n\n\nthree line ends",
    "Grüße, naïve café, Ελληνικά, русский, עברית, हिन्दी, 日本語",
    "👩‍🚀 e\u0301 ≠ é \u200b zero width",
    "a , b . c ! d ? e ' f n't 's 'm 've 're",
)


def convert_tokenizer(tokenizer: Any, checkpoint: Checkpoint, folder: Path) -> None:
    """Write the tokenizer and detokenizer IRs to `folder`. Raises TokenizerNotConverted."""
    import openvino_tokenizers
    from optimum.exporters.openvino.utils import set_simplified_chat_template

    tokenizer.padding_side = tokenizer.truncation_side = "left"
    try:
        with quiet():
            encoder, decoder = openvino_tokenizers.convert_tokenizer(
                tokenizer,
                with_detokenizer=True,
                clean_up_tokenization_spaces=False,  # it would change text that was streamed already, and code
            )
            set_simplified_chat_template(encoder)  # for templates that the runtime's engine does not support
            tokenizer.save_pretrained(folder)
    except Exception as error:
        raise TokenizerNotConverted(
            f"OpenVINO Tokenizers cannot convert the {type(tokenizer).__name__} of {checkpoint.source}: {error}"
        ) from error
    ov.save_model(encoder, folder / "openvino_tokenizer.xml")
    ov.save_model(decoder, folder / "openvino_detokenizer.xml")


def differing_samples(tokenizer: Any, folder: Path) -> list[str]:
    """The samples that the converted tokenizer encodes or decodes differently from the original."""
    converted = Tokenizer(folder)
    return [text for text in SAMPLES if not _agree(tokenizer, converted, text)]


def _agree(tokenizer: Any, converted: Tokenizer, text: str) -> bool:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return bool(
        converted.encode(text, add_special_tokens=False) == ids
        and converted.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )
