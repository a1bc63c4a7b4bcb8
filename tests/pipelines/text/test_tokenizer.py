"""Streamed text: whole characters only, never a part of a stop string, and in the end all of it."""

from __future__ import annotations

import itertools
import shutil
import time
from itertools import accumulate

import openvino
import openvino_genai
import openvino_tokenizers
import pytest
import regex
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.pipelines.config import GenerationConfig
from outrider.pipelines.errors import InvalidOption
from outrider.pipelines.text.tokenizer import TextStream, Tokenizer

from .. import reference
from ..fakes import FakeTokenizer

FAMILY = "👩‍👩‍👧‍👦"
TRICKY = [
    "a", "b", "é", "e\u0301", "ß", "漢字", "한", "각", "👍🏽", FAMILY, "🏳️‍🌈", "🇩🇪", "🇫🇷🇮🇹", "नमस्ते", "ก็",
    "\r\n", "\n", " ", "\ufffd", "\u200d", "\u0301", "#️⃣", "def f(x):", "🧑‍💻",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(TRICKY), st.text(max_size=3)), max_size=12).map("".join)
SOURCES = st.sampled_from(["target", "prompt_lookup", "draft_model"])


@st.composite
def splits(draw: st.DrawFn, texts: st.SearchStrategy[bytes]) -> list[bytes]:
    """Some bytes, cut into tokens anywhere, characters included."""
    data = draw(texts)
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(data) - 1)))))
    return [piece for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if (piece := data[a:b])]


def written(pieces: list[bytes], data: st.DataObject, stops: set[str] = frozenset(), include_stop: bool = False):
    """Feed the tokens in groups, as passes do; returns the spans taken each time, and the last token's number."""
    stream = TextStream(FakeTokenizer(pieces), stops, include_stop)
    sources = [data.draw(SOURCES) for _ in pieces]
    taken, num_fed = [], 0
    while num_fed < len(pieces) and not stream.stopped:
        group = range(num_fed, min(len(pieces), num_fed + data.draw(st.integers(1, 5))))
        num_fed += stream.extend(list(group), [sources[i] for i in group])
        taken.append(stream.take())
    taken.append(stream.take(final=True))
    return taken, num_fed, stream.stopped


def texts_of(taken: list) -> list[str]:
    return ["".join(span.text for span in spans) for spans in taken]


@given(splits(st.one_of(TEXTS.map(str.encode), st.binary(max_size=24))), st.data())
def test_streamed_text_is_the_decoded_text(pieces, data):
    taken, num_fed, _ = written(pieces, data)
    assert num_fed == len(pieces)
    assert "".join(texts_of(taken)) == b"".join(pieces).decode(errors="replace")


@given(splits(TEXTS.map(str.encode)), st.sets(TEXTS.filter(bool), max_size=3), st.data())
def test_no_piece_splits_what_a_reader_sees_as_one_character(pieces, stops, data):
    text = b"".join(pieces).decode()
    stops = {stop for stop in stops if stop not in text}  # a stop string itself may cut a character, nothing else may
    taken, _, _ = written(pieces, data, stops)
    ends = {0, *accumulate(map(len, regex.findall(r"\X", text)))}
    assert set(accumulate(map(len, texts_of(taken)))) <= ends


@given(
    splits(st.text("abc", max_size=24).map(str.encode)),
    st.sets(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.booleans(),
    st.data(),
)
def test_text_ends_at_the_stop_string_that_is_complete_first(pieces, stops, include_stop, data):
    taken, num_fed, stopped = written(pieces, data, stops, include_stop)
    config = GenerationConfig(stop_strings=stops, include_stop_str_in_output=include_stop)
    text = b"".join(pieces).decode()
    assert "".join(texts_of(taken)) == reference.cut(text, config)
    assert stopped == any(stop in text for stop in stops)
    fed = b"".join(pieces[:num_fed]).decode()
    assert stopped or fed == text
    assert not any(stop in b"".join(pieces[: num_fed - 1]).decode() for stop in stops), "noticed too late"


@given(splits(TEXTS.map(str.encode)), st.sets(TEXTS.filter(bool), min_size=1, max_size=3), st.data())
def test_a_stop_string_of_any_characters_is_found_and_kept_back(pieces, stops, data):
    taken, _, stopped = written(pieces, data, stops)
    text = b"".join(pieces).decode()
    assert "".join(texts_of(taken)) == reference.cut(text, GenerationConfig(stop_strings=stops))
    assert stopped == any(stop in text for stop in stops)


def test_holding_back_a_stop_string_does_not_tear_a_character_apart():
    stream = TextStream(FakeTokenizer(["👍🏽 a".encode()]), {"\U0001f3fd ab"})
    stream.extend([0], ["target"])
    assert stream.take() == ()


def test_a_stop_string_is_noticed_in_a_token_that_also_begins_a_character():
    stream = TextStream(FakeTokenizer([b"say END\xe2", b"\x82", b"\xac"]), {"END"})
    assert stream.extend([0, 1, 2], ["target"] * 3) == 1
    assert stream.stopped
    assert "".join(span.text for span in stream.take()) == "say "


def test_the_beginning_of_a_stop_string_is_given_out_once_it_cannot_be_one():
    stream = TextStream(FakeTokenizer([b"one EN", b"ORMOUS", b" E"]), {"END"})
    given_out = []
    for token in range(3):
        stream.extend([token], ["target"])
        given_out.append("".join(span.text for span in stream.take()))
    assert given_out == ["one ", "ENORMOU", "S "]
    assert "".join(span.text for span in stream.take(final=True)) == "E"


@given(splits(TEXTS.map(str.encode)), st.data())
def test_a_span_names_who_proposed_the_token_that_completed_its_characters(pieces, data):
    stream = TextStream(FakeTokenizer(pieces))
    sources = [data.draw(SOURCES) for _ in pieces]
    if pieces:
        stream.extend(list(range(len(pieces))), sources)
    spans = stream.take(final=True)
    owners = [source for piece, source in zip(pieces, sources, strict=True) for _ in piece]
    text = b"".join(pieces).decode()
    ends = list(accumulate(len(character.encode()) for character in text))
    expected = [owners[end - 1] for end in ends]
    # U+FFFD written on purpose looks like an unfinished character until the next token comes.
    sure = [i for i, character in enumerate(text) if character != "\ufffd"]
    named = [span.source for span in spans for _ in span.text]
    assert [named[i] for i in sure] == [expected[i] for i in sure]
    assert all(span.text for span in spans)


@pytest.fixture(scope="module")
def tokenizer(embedded_pair) -> Tokenizer:
    return Tokenizer(embedded_pair / "target")


@given(data=st.data())
def test_the_real_tokenizer_streams_what_it_decodes(tokenizer, data):
    """Random ids are mostly invalid byte sequences, encoded text never is."""
    any_ids = st.lists(st.integers(0, len(tokenizer.vocabulary) - 1), max_size=20)
    ids = data.draw(st.one_of(any_ids, TEXTS.filter(bool).map(tokenizer.encode)))
    stream, taken = TextStream(tokenizer), []
    num_fed = 0
    while num_fed < len(ids):
        group = ids[num_fed : num_fed + data.draw(st.integers(1, 5))]
        num_fed += stream.extend(group, ["target"] * len(group))
        taken.append("".join(span.text for span in stream.take()))
    taken.append("".join(span.text for span in stream.take(final=True)))
    text = tokenizer.decode(ids)
    assert "".join(taken) == text
    assert set(accumulate(map(len, taken))) <= {0, *accumulate(map(len, regex.findall(r"\X", text)))}


@given(TEXTS.filter(bool))
def test_the_real_tokenizer_gives_text_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.fixture(scope="module")
def detokenizer(embedded_pair) -> openvino_genai.Tokenizer:
    return openvino_genai.Tokenizer(embedded_pair / "target")


@given(data=st.data())
def test_texts_put_together_are_those_that_the_detokenizer_writes(tokenizer, detokenizer, data):
    """Special tokens, parts of characters and all: random ids of a small vocabulary."""
    ids = st.lists(st.integers(0, len(tokenizer.vocabulary) - 1), min_size=1, max_size=12)
    batch = data.draw(st.lists(st.one_of(ids, TEXTS.filter(bool).map(tokenizer.encode)), min_size=1, max_size=4))
    assert tokenizer.decode_batch(batch) == detokenizer.decode(batch)


@pytest.fixture(scope="module")
def cleaning(embedded_pair, tmp_path_factory) -> Tokenizer:
    """One that takes spaces before marks away, as "clean_up_tokenization_spaces" asks for."""
    folder = tmp_path_factory.mktemp("cleaning")
    for file in (embedded_pair / "target").glob("*tokenizer*"):
        shutil.copy(file, folder)
    original = transformers.AutoTokenizer.from_pretrained(embedded_pair / "target")
    _, detokenizer = openvino_tokenizers.convert_tokenizer(
        original, with_detokenizer=True, clean_up_tokenization_spaces=True
    )
    openvino.save_model(detokenizer, folder / "openvino_detokenizer.xml")
    return Tokenizer(folder)


MARKED = st.lists(st.sampled_from([" ,", " ?", " '", " n't", " .", "a", " b", "'s", "\n", " ' s", "é", "☕", " "]))


@settings(max_examples=60)
@given(MARKED.map("".join), st.lists(st.integers(1, 6), min_size=1), st.sampled_from([None, "b,", "?", "n't"]))
def test_text_that_a_later_token_changes_is_given_out_once_it_is_settled(cleaning, text, sizes, stop):
    assert cleaning.takes_back
    ids = cleaning.encode(text + " x y", add_special_tokens=False)
    stream = TextStream(cleaning, {stop} if stop else ())
    given_out, num_taken = "", 0
    for size in itertools.cycle(sizes):
        group = ids[num_taken : num_taken + size]
        num_taken += stream.extend(group, [str(n) for n in range(num_taken, num_taken + len(group))])
        given_out += "".join(span.text for span in stream.take())
        assert cleaning.decode(ids).startswith(given_out) or stop
        if stream.stopped or num_taken == len(ids):
            break
    given_out += "".join(span.text for span in stream.take(final=True))
    lengths = [n for n in range(1, len(ids) + 1) if stop and stop in cleaning.decode(ids[:n])]
    written = cleaning.decode(ids[: lengths[0]] if lengths else ids)
    assert num_taken == (lengths[0] if lengths else len(ids))
    assert given_out == (written.partition(stop)[0] if lengths else written)


def test_the_detokenizer_of_the_embedded_pair_is_not_run_between_passes(embedded_pair, monkeypatch):
    tokenizer = Tokenizer(embedded_pair / "target")
    prompt = tokenizer.encode("def f(x):\n    return x\n")
    monkeypatch.setattr(tokenizer, "_tokenizer", None)
    assert tokenizer.decode(prompt) == "def f(x):\n    return x\n"


def test_a_template_that_refuses_messages_is_quoted_with_its_reason_alone(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer._tokenizer, "chat_template", "{{ raise_exception('Roles must alternate.') }}")
    with pytest.raises(InvalidOption) as refused:
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}])
    assert str(refused.value) == "The chat template of this model refuses these messages: Roles must alternate."


def test_a_stop_string_of_a_million_characters_holds_nobody_up():
    """Of its beginnings only those that the text could end with are looked for; all of them would take minutes."""
    stream = TextStream(FakeTokenizer([b"a", b"b", b"a"]), ["a" * 1_000_000])
    began = time.process_time()
    stream.extend([0, 1, 2], ["target"] * 3)
    assert texts_of([stream.take()]) == ["ab"]
    assert time.process_time() - began < 5
