"""The bytes of every token, of vocabularies that write them in different ways."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from outrider.pipelines import GenerationConfig, LLMPipeline, StructuredOutputConfig
from outrider.pipelines.structured.grammars import Grammars
from outrider.pipelines.text.token_bytes import TokenBytes
from outrider.pipelines.text.tokenizer import TextStream, Tokenizer

from ..requests import UNICODE

TEXTS = ("hello  world\n\tx", UNICODE, '{"a": [1, 2.5e-7, null]}', "def f(x):\n    return x\n", "\x00\x02~")


class Written:
    """A tokenizer whose names are not what its tokens stand for."""

    eos_token_id = None

    def __init__(self, names: Sequence[bytes], texts: Sequence[bytes]) -> None:
        self.vocabulary = {name: i for i, name in enumerate(names)}
        self._texts = texts

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._texts[i] for i in ids).decode(errors="replace")

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        return [self.decode(ids) for ids in batch]


def test_what_the_detokenizer_shows_decides_what_a_name_means():
    names = ["a", "▁a", "▁▁", "<0x41>", "<0xE2>", "<0x0A>", "<s>", "é", "odd", ""]
    texts = [b"a", b" a", b"  ", b"A", b"\xe2", b"\n", b"", "é".encode(), b"even", b""]
    read = TokenBytes.read(Written([name.encode() for name in names], texts))  # type: ignore[arg-type]
    assert read.of == (b"a", b" a", b"  ", b"A", b"\xe2", b"\n", b"<s>", "é".encode(), b"")
    assert read.special == {6}


def test_a_vocabulary_that_means_what_it_says_is_taken_at_its_word():
    names = ["a", "▁a", "<0x41>"]
    names_as_bytes = [name.encode() for name in names]
    assert TokenBytes.read(Written(names_as_bytes, names_as_bytes)).of == tuple(names_as_bytes)  # type: ignore[arg-type]


def test_the_embedded_pairs_tokens_add_up_to_the_text(pipeline: LLMPipeline):
    tokenizer = pipeline.tokenizer
    read = TokenBytes.read(tokenizer)
    assert len(read.of) == len(tokenizer.vocabulary)
    assert all(read.of)
    assert read.special == {i for i in range(len(read.of)) if not tokenizer.decode([i])}
    for text in TEXTS:
        assert b"".join(read.of[i] for i in tokenizer.encode(text)).decode() == text


@pytest.fixture(params=["no space", "a space first"])
def sentencepiece(request, tmp_path: Path) -> Tokenizer:
    """A tokenizer of the kind that Llama 2 and Phi-3 have, as the exporter would convert it."""
    import openvino
    import openvino_tokenizers
    import tokenizers
    import transformers
    from tokenizers import decoders, models, normalizers, trainers

    is_prefixed = request.param == "a space first"
    model = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    prefix = [normalizers.Prepend("▁")] if is_prefixed else []
    model.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    model.train_from_iterator(Path(__file__).read_text(encoding="utf-8").splitlines(), trainer)
    content = json.loads(model.to_str())
    vocabulary = content["model"]["vocab"]
    for byte in range(256):
        vocabulary.setdefault(f"<0x{byte:02X}>", len(vocabulary))
    model = tokenizers.Tokenizer.from_str(json.dumps(content))
    strip = [decoders.Strip(" ", 1, 0)] if is_prefixed else []
    model.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    for name, converted in zip(
        ("tokenizer", "detokenizer"), openvino_tokenizers.convert_tokenizer(fast, with_detokenizer=True), strict=True
    ):
        openvino.save_model(converted, tmp_path / f"openvino_{name}.xml")
    return Tokenizer(tmp_path)


def test_tokens_with_byte_fallback_add_up_to_the_text(sentencepiece: Tokenizer):
    read = TokenBytes.read(sentencepiece)
    assert read.special == {0, 1, 2}
    assert {bytes([byte]) for byte in range(256)} <= set(read.of)
    for text in TEXTS[:-1]:
        written = b"".join(read.of[i] for i in sentencepiece.encode(text, add_special_tokens=False)).decode()
        assert written.removeprefix(" ") == text.removeprefix(" ")


def test_a_detokenizer_that_may_take_the_first_space_away_writes_each_text_as_a_whole(sentencepiece: Tokenizer):
    """What a token adds depends on whether it comes first, and a character may have several."""
    for text in ("a b  c", "a b \N{SNOWMAN}"):
        ids = sentencepiece.encode(text, add_special_tokens=False)
        expected = [sentencepiece._tokenizer.decode(ids[i:]) for i in range(len(ids))]
        assert sentencepiece.decode_batch([ids[i:] for i in range(len(ids))]) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_text_is_the_same_however_many_tokens_come_at_once_also_behind_special_ones(sentencepiece: Tokenizer, size):
    ids = sentencepiece.encode("the name is naïve ☕ ok", add_special_tokens=False)
    for place in range(len(ids) + 1):
        tokens = [*ids[:place], 2, *ids[place:]]
        stream, text = TextStream(sentencepiece), ""
        for i in range(0, len(tokens), size):
            group = tokens[i : i + size]
            stream.extend(group, ["target"] * len(group))
            text += "".join(span.text for span in stream.take())
        text += "".join(span.text for span in stream.take(final=True))
        assert text == sentencepiece.decode(tokens)


def test_forced_text_has_no_space_that_the_tokenizer_puts_first(sentencepiece: Tokenizer):
    read = TokenBytes.read(sentencepiece)
    text = "TokenBytes of the tokenizer, naïve ☕"
    config = GenerationConfig(structured_output_config=StructuredOutputConfig(regex=text), eos_token_ids={2})
    constraint = Grammars(sentencepiece).constraint(config)
    assert constraint is not None
    written: list[int] = []
    while not constraint.is_complete(written):
        token = constraint.forced(written)
        assert token is not None
        written.append(token)
    assert b"".join(read.of[i] for i in written).decode() == text
    assert len(written) < len(text), "longer tokens than single characters"
