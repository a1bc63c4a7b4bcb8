"""TokenBytes: the bytes that each token of a vocabulary stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import regex

from .tokenizer import INCOMPLETE, Tokenizer

SPACE = "▁".encode()  # SentencePiece's sign for a space
SIGNS = regex.compile(f"{INCOMPLETE}+")
BYTE = regex.compile(rb"<0x([0-9A-F]{2})>")  # SentencePiece's form for a byte that is not in its vocabulary


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """of: the bytes that each id adds to a text, empty if unknown.
    special: ids that add no text, such as the end of an answer; `of` has their names.
    """

    of: tuple[bytes, ...]
    special: frozenset[int]

    @classmethod
    def read(cls, tokenizer: Tokenizer) -> TokenBytes:
        """Vocabularies write tokens in several ways; comparing with the detokenizer's texts tells which."""
        vocabulary = tokenizer.vocabulary
        ids = [token_id for name, token_id in vocabulary.items() if name]
        names = {token_id: name for name, token_id in vocabulary.items()}
        anchor = _anchor(vocabulary, tokenizer)
        texts = tokenizer.decode_batch([[anchor, token_id] for token_id in ids]) if ids else []
        start = len(tokenizer.decode([anchor]))
        of = [b""] * (1 + max(ids, default=-1))
        special = set() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
        for token_id, text in zip(ids, texts, strict=True):
            name, added = names[token_id], text[start:]
            if not added or token_id in special:
                special.add(token_id)
                of[token_id] = name
            else:
                of[token_id] = next((form for form in _forms(name) if _shown(form) == _merged(added)), b"")
        return cls(tuple(of), frozenset(special))


def _anchor(vocabulary: Mapping[bytes, int], tokenizer: Tokenizer) -> int:
    """A token to put before others, because some detokenizers drop a space at the beginning."""
    letters = (token_id for name, token_id in sorted(vocabulary.items()) if name.isalpha())
    return next((token_id for token_id in letters if tokenizer.decode([token_id])), min(vocabulary.values()))


def _forms(name: bytes) -> Sequence[bytes]:
    """The bytes that a token of this name may stand for."""
    byte = BYTE.fullmatch(name)
    return (name, name.replace(SPACE, b" "), *((bytes.fromhex(byte[1].decode()),) if byte else ()))


def _shown(form: bytes) -> str:
    return _merged(form.decode(errors="replace"))


def _merged(text: str) -> str:
    """Detokenizers differ in how many replacement characters they write for invalid bytes."""
    return SIGNS.sub(INCOMPLETE, text) if INCOMPLETE in text else text
