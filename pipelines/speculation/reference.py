"""Reference: which tokens follow which in a folder of the user's own files, kept on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from ..errors import InvalidOption
from .drafters.suffix import Match

FORMAT = 2
LENGTHS = (8, 5, 3)  # tokens of the n-grams that are looked for, the longest first
MOST_TOKENS = 20_000_000  # 0.8 GB on disk
LARGEST_FILE = 4_000_000  # bytes
MOST_OCCURRENCES = 64  # that are looked at of an n-gram, the latest ones
END_OF_FILE = 2**32 - 1
_BASE = 0x9E3779B97F4A7C15
_WRAP = 2**64 - 1

log = logging.getLogger(__name__)


class Reference:
    """The tokens of many files, one after the other, and for each length of n-gram its occurrences in order.

    tokens: uint32 [tokens], END_OF_FILE after every file.
    fingerprints, ends: for each of LENGTHS, uint64 and uint32 [occurrences], sorted by fingerprint and then by
    position: the n-gram's fingerprint and the position of the token that follows. All stay on disk and are mapped into
    memory. Two n-grams with the same fingerprint cannot be told apart, which at worst causes a wrong proposal.
    """

    def __init__(self, folder: Path) -> None:
        def opened(name: str) -> NDArray[np.generic]:
            return np.load(folder / f"{name}.npy", mmap_mode="r")

        self.tokens = opened("tokens")
        self._lengths = [(length, opened(f"fingerprints-{length}"), opened(f"ends-{length}")) for length in LENGTHS]

    def match(self, tail: SequenceOf[int]) -> Match | None:
        """The longest known n-gram at the end of a text, and what followed it most often."""
        for length, fingerprints, ends in self._lengths:
            if len(tail) < length:
                continue
            wanted = np.uint64(_fingerprint(tail[-length:]))
            begin, end = (int(np.searchsorted(fingerprints, wanted, side)) for side in ("left", "right"))
            latest = ends[max(begin, end - MOST_OCCURRENCES) : end]
            followers = [(int(self.tokens[place]), int(place)) for place in latest]
            counts = Counter(token for token, _ in followers if token != END_OF_FILE)
            if counts:
                token, count = max(counts.items(), key=lambda item: item[1])
                place = max(place for follower, place in followers if follower == token)
                return Match(length, place, len(followers), (count + 1) / (len(followers) + 2))
        return None

    @classmethod
    def of(cls, folder: Path, cache: Path, vocabulary: str, encode: Callable[[str], list[int]]) -> Reference:
        """The reference of a folder, from `cache` where nothing has changed.

        vocabulary: identifies the tokenizer that `encode` uses.

        Hidden files, binary ones and those over LARGEST_FILE bytes are left out; how many is logged. Raises
        InvalidOption where there is no such folder or no text in it, and where `cache` cannot be used.
        """
        if not folder.is_dir():
            raise InvalidOption(f"There is no folder {folder} to take as a reference: give one with text files.")
        try:
            return cls._kept(folder, cache / "reference", vocabulary, encode)
        except (OSError, NotImplementedError) as error:  # the latter where files cannot be locked
            raise InvalidOption(
                f"The index of the reference folder {folder} cannot be kept in {cache} ({error}): check that the disk "
                "has room and that the folder is writable, or load the pair without a reference."
            ) from error

    @classmethod
    def _kept(cls, folder: Path, cache: Path, vocabulary: str, encode: Callable[[str], list[int]]) -> Reference:
        files = list(_files(folder))
        state = json.dumps([FORMAT, vocabulary, [_stamp(file) for file in files]])
        kept = cache / hashlib.sha256(f"{vocabulary} ".encode() + os.fsencode(folder.resolve())).hexdigest()[:32]
        place = kept / hashlib.sha256(state.encode()).hexdigest()[:32]
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{kept}.lock"):
            try:
                return cls(place)
            except (OSError, ValueError, EOFError) as error:
                log.debug("No usable reference in %s: %s", place, error)
            tokens = _tokens(folder, files, encode)
            shutil.rmtree(kept, ignore_errors=True)  # on Windows what another process has open stays
            kept.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=kept) as made:
                _write(Path(made), tokens)
                Path(made).rename(place)  # nobody sees it before it is whole
            return cls(place)


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root) / name for name in sorted(names) if not name.startswith("."))


def _stamp(file: Path) -> tuple[str, int, int]:
    try:
        status = file.stat()
    except OSError:
        return str(file), 0, 0
    return str(file), status.st_size, status.st_mtime_ns


def _tokens(folder: Path, files: SequenceOf[Path], encode: Callable[[str], list[int]]) -> NDArray[np.uint32]:
    parts: list[NDArray[np.uint32]] = []
    skipped: Counter[str] = Counter()
    total = 0
    for file in files:
        if file.exists() and not file.is_file():  # a pipe, which would be waited for
            skipped["no regular files"] += 1
            continue
        try:
            content = file.read_bytes() if file.stat().st_size <= LARGEST_FILE else None
            text = None if content is None or b"\0" in content else content.decode()
        except OSError:
            skipped["unreadable"] += 1
            continue
        except UnicodeDecodeError:
            text = None
        if text is None:
            skipped["too large" if content is None else "binary"] += 1
        elif total < MOST_TOKENS:
            parts.append(np.array([*encode(text), END_OF_FILE], np.uint32))
            total += len(parts[-1])
        else:
            skipped["beyond the limit"] += 1
    left_out = ", ".join(f"{count} {why}" for why, count in skipped.items())
    log.info("%s: %d files with %d tokens%s", folder, len(parts), total, f"; left out: {left_out}" if left_out else "")
    if not parts:
        raise InvalidOption(f"{folder} has no text files to take as a reference{f' ({left_out})' if left_out else ''}.")
    return np.concatenate(parts)


def _write(folder: Path, tokens: NDArray[np.uint32]) -> None:
    np.save(folder / "tokens.npy", tokens)
    for length in LENGTHS:
        prints = np.zeros(max(0, len(tokens) - length), np.uint64)  # of the n-gram that begins at i and has a successor
        within = np.ones(len(prints), bool)
        for offset in range(length):
            part = tokens[offset : offset + len(prints)]
            prints = prints * np.uint64(_BASE) + part.astype(np.uint64) + np.uint64(1)
            within &= part != END_OF_FILE
        starts = np.flatnonzero(within)
        order = np.argsort(prints[starts], kind="stable")
        np.save(folder / f"fingerprints-{length}.npy", prints[starts][order])
        np.save(folder / f"ends-{length}.npy", (starts[order] + length).astype(np.uint32))


def _fingerprint(tokens: SequenceOf[int]) -> int:
    value = 0
    for token in tokens:
        value = (value * _BASE + token + 1) & _WRAP
    return value
