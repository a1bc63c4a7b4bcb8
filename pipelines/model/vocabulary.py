"""Vocabulary: checks that two models use the same token ids."""

from __future__ import annotations

import filecmp
from collections.abc import Mapping
from pathlib import Path

from ..errors import VocabularyMismatch

ABSENT = -1
CONSTANTS = ("openvino_tokenizer.bin", "openvino_detokenizer.bin")  # of tokenizers, which hold all tokens


def have_same_constants(target: Path, draft: Path) -> bool:
    """Whether the tokenizers in two folders consist of the same tokens. They are compared without being loaded, which
    takes as long as compiling a small model."""
    return not any(filecmp.cmpfiles(target, draft, CONSTANTS, shallow=False)[1:])


def check_same_vocabulary(target: Mapping[bytes, int], draft: Mapping[bytes, int], names: str) -> None:
    """Compare two vocabularies, token to id. Raises VocabularyMismatch, which shows the first differences."""
    if target == draft:
        return
    both = ((target.get(token, ABSENT), draft.get(token, ABSENT), token) for token in target.keys() | draft.keys())
    different = sorted((change for change in both if change[0] != change[1]), key=_first_id)
    shown = "; ".join(
        f"{token.decode(errors='backslashreplace')!r} is {_place(ours)} in the target and {_place(theirs)} in the draft"
        for ours, theirs, token in different[:3]
    )
    raise VocabularyMismatch(
        f"The vocabularies of {names} differ in {len(different)} tokens ({shown}): take a draft model of the same "
        "family."
    )


def _first_id(change: tuple[int, int, bytes]) -> tuple[int, bytes]:
    """Sorts differences by the lowest id in either vocabulary."""
    return min(place for place in change[:2] if place != ABSENT), change[2]


def _place(token_id: int) -> str:
    return "absent" if token_id == ABSENT else str(token_id)
