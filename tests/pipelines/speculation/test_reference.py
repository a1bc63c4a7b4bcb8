"""The reference folder: what it finds is what a search of all files finds, and what it cannot read it counts."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines import InvalidOption, LLMPipeline
from outrider.pipelines.speculation.drafters.retrieval import Retrieval
from outrider.pipelines.speculation.reference import END_OF_FILE, LENGTHS, MOST_OCCURRENCES, Reference, _write

from ..fakes import new_request


def encode(text: str) -> list[int]:
    return list(text.encode())


def naive(texts: list[list[int]], tail: list[int]):
    """Length of the longest known n-gram, how often each token followed it of late, and all of them."""
    for length in LENGTHS:
        if len(tail) < length:
            continue
        followers = [
            text[at + length] if at + length < len(text) else END_OF_FILE
            for text in texts
            for at in range(len(text) - length + 1)
            if text[at : at + length] == tail[-length:]
        ][-MOST_OCCURRENCES:]
        if any(token != END_OF_FILE for token in followers):
            return length, Counter(token for token in followers if token != END_OF_FILE), len(followers)
    return None


TEXT = st.lists(st.integers(0, 2), max_size=40)


@given(st.lists(TEXT, min_size=1, max_size=4), st.lists(st.integers(0, 2), max_size=12))
def test_a_match_is_what_a_search_of_all_files_finds(tmp_path_factory, texts, tail):
    folder = tmp_path_factory.mktemp("reference")
    _write(folder, np.array([token for text in texts for token in [*text, END_OF_FILE]], np.uint32))
    reference = Reference(folder)
    found, expected = reference.match(tail), naive(texts, tail)
    if expected is None:
        assert found is None
        return
    length, counts, count = expected
    assert (found.length, found.times) == (length, count)
    followed = int(reference.tokens[found.end])
    assert counts[followed] == max(counts.values())
    assert reference.tokens[found.end - length : found.end].tolist() == tail[-length:]
    assert found.share == (counts[followed] + 1) / (count + 2)


def test_retrieval_goes_on_as_the_files_do(tmp_path):
    (tmp_path / "poem.txt").write_text("the quick brown fox jumps over the lazy dog")
    drafter = Retrieval(Reference.of(tmp_path, tmp_path / "cache", "bytes", encode))
    proposed = bytes(p.token for p in drafter.propose(new_request(encode("see how a quick"))))
    assert proposed == b" brown fox jumps over the lazy dog"
    behind = bytes(p.token for p in drafter.propose(new_request(encode("see how a qu")), tuple(encode("ick brown"))))
    assert behind == b" fox jumps over the lazy dog"
    assert list(drafter.propose(new_request(encode("zebra")))) == []


def test_what_is_not_text_is_left_out_and_counted(tmp_path, caplog, monkeypatch):
    files = tmp_path / "files"
    (files / "deep").mkdir(parents=True)
    (files / "deep" / "a.txt").write_text("hello there")
    (files / "picture").write_bytes(b"\x89PNG\0\0")
    (files / "latin").write_bytes("caf\xe9".encode("latin-1"))
    (files / ".hidden").write_text("secret")
    (files / "large").write_text("x" * 5_000_000)
    (files / "locked").write_text("not yours")
    read = type(files).read_bytes
    monkeypatch.setattr(type(files), "read_bytes", lambda path: read(path) if path.name != "locked" else _refuse())
    with caplog.at_level(logging.INFO):
        Reference.of(files, tmp_path / "cache", "bytes", encode)
    assert "1 files with" in caplog.text
    assert "2 binary" in caplog.text
    assert "1 unreadable" in caplog.text
    assert "1 too large" in caplog.text


def _refuse():
    raise PermissionError("not yours")


def test_a_link_to_nowhere_is_left_out(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("hello there")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    with caplog.at_level(logging.INFO):
        Reference.of(tmp_path, tmp_path / "cache", "bytes", encode)
    assert "1 unreadable" in caplog.text


def test_the_index_is_made_again_only_when_something_changed(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.txt").write_text("hello there")
    calls = []

    def noted(text):
        calls.append(text)
        return encode(text)

    for _ in range(2):
        Reference.of(files, tmp_path / "cache", "bytes", noted)
    assert calls == ["hello there"]
    (files / "b.txt").write_text("and you")
    assert Reference.of(files, tmp_path / "cache", "bytes", noted).match(encode("and y")) is not None
    assert len(calls) == 3
    assert len(list((tmp_path / "cache" / "reference").glob("*/*/"))) == 1


@pytest.mark.parametrize("name", ["tokens", "ends-3", "fingerprints-8"])
@pytest.mark.parametrize("size", [0, 5, 100])
def test_an_index_that_was_cut_off_is_made_again(tmp_path, name, size):
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.txt").write_text("hello there, and you")
    Reference.of(files, tmp_path / "cache", "bytes", encode)
    (kept,) = (tmp_path / "cache" / "reference").glob(f"*/*/{name}.npy")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:size])
    assert Reference.of(files, tmp_path / "cache", "bytes", encode).match(encode("and y")) is not None
    assert kept.read_bytes() == whole


def test_an_index_that_is_interrupted_is_not_taken_for_a_whole_one(tmp_path, monkeypatch):
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.txt").write_text("hello there, and you")
    save, saved = np.save, []

    def interrupted(path, values):
        if len(saved) == 3:
            raise KeyboardInterrupt
        saved.append(path)
        save(path, values)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Reference.of(files, tmp_path / "cache", "bytes", encode)
    assert Reference.of(files, tmp_path / "cache", "bytes", encode).match(encode("and y")) is not None


@pytest.mark.parametrize("what", ["a file in its place", "no room", "no locks"])
def test_a_cache_that_cannot_be_used_is_told_with_the_reason(tmp_path, monkeypatch, what):
    files, cache = tmp_path / "files", tmp_path / "cache"
    files.mkdir()
    (files / "a.txt").write_text("hello there, and you")

    def fail(*given):
        raise (OSError if what == "no room" else NotImplementedError)(what)

    if what == "a file in its place":
        cache.write_text("")
    elif what == "no room":
        monkeypatch.setattr(np, "save", fail)
    else:
        monkeypatch.setattr(FileLock, "acquire", fail)
    with pytest.raises(
        InvalidOption, match=rf"cannot be kept in {re.escape(str(cache))} \(.+\): check that the disk has room"
    ):
        Reference.of(files, cache, "bytes", encode)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_the_folder_is_not_waited_for(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("hello there")
    os.mkfifo(tmp_path / "pipe")
    with caplog.at_level(logging.INFO):
        Reference.of(tmp_path, tmp_path / "cache", "bytes", encode)
    assert "1 no regular files" in caplog.text


def test_a_folder_without_text_is_refused(tmp_path, embedded_pair):
    with pytest.raises(InvalidOption, match="no folder"):
        LLMPipeline(embedded_pair, reference=tmp_path / "nowhere")
    (tmp_path / "picture").write_bytes(b"\0")
    with pytest.raises(InvalidOption, match=r"no text files .*1 binary"):
        LLMPipeline(embedded_pair, reference=tmp_path)


@pytest.mark.slow
def test_answers_are_the_same_with_a_reference(tmp_path, embedded_pair):
    prompt = "Repeat this function:\ndef area(width, height):\n    return width * height"
    plain = LLMPipeline(embedded_pair, exact=True).generate(prompt, max_new_tokens=40, mode="off")
    (tmp_path / "quoted.py").write_text(plain + "\n" + plain)
    pipeline = LLMPipeline(embedded_pair, reference=tmp_path, exact=True)
    answers = [pipeline.generate(prompt, max_new_tokens=40, mode=mode) for mode in pipeline.modes for _ in range(2)]
    assert set(map(str, answers)) == {plain}
