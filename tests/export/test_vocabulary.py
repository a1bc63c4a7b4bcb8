"""Tokenizers are read in each form that checkpoints have them in."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

from outrider.export.checkpoint import find_checkpoint
from outrider.export.vocabulary import load_tokenizer

from .conftest import CORPUS


def test_a_tokenizer_of_sentencepiece_alone_is_read(target: Path, tmp_path: Path) -> None:
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    source = shutil.copytree(target, tmp_path / "source", ignore=shutil.ignore_patterns("*token*", "*.jinja"))
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, model_type="bpe", vocab_size=300, byte_fallback=True,
        minloglevel=2,
    )  # fmt: skip
    (source / "tokenizer.model").write_bytes(model.getvalue())
    named = {"tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    (source / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")
    tokenizer = load_tokenizer(find_checkpoint(str(source), False, print))
    expected = SentencePieceProcessor(model_proto=model.getvalue()).encode("def area(width):")
    assert tokenizer.encode("def area(width):", add_special_tokens=False) == expected
