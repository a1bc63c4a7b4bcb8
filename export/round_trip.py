"""Round trip: one greedy answer in every mode, which must have the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.pipelines import LLMPipeline

from .errors import RoundTripFailed

PROMPT = "Repeat this function:\n\ndef area(width, height):\n    size = width * height\n    return size\n"
NEW_TOKENS = 32
CACHE_TOKENS = 1024
DRAFT_TOKENS = 5  # fixed, since only drafted tokens are checked


def round_trip(pair: Path) -> dict[str, Any]:
    """Load the pair and generate once in each mode.

    Returns the number of passes, drafted and accepted tokens of each mode, and whether this machine guarantees
    exactness. If it does, raises RoundTripFailed at the first token that differs. Also raises what LLMPipeline raises,
    such as UnsupportedModel.
    """
    pipeline = LLMPipeline(pair, cache_tokens=CACHE_TOKENS, exact=True)
    expected: tuple[int, ...] = ()
    report: dict[str, Any] = {"new_tokens": NEW_TOKENS, "exact": pipeline.exact}
    for mode in pipeline.modes:
        options = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, "num_assistant_tokens": DRAFT_TOKENS}
        results = pipeline.generate(PROMPT, mode=mode, **options)
        answer = results.generations[0]
        if mode == "off":
            expected = answer.token_ids
        if pipeline.exact:
            _require_equal(mode, expected, answer.token_ids)
        stats = answer.stats
        report[mode] = {"passes": stats.passes, "drafted": stats.drafted, "accepted": stats.accepted}
    return report


def _require_equal(mode: str, expected: tuple[int, ...], actual: tuple[int, ...]) -> None:
    if len(expected) != NEW_TOKENS:
        raise RoundTripFailed(f"The model generated {len(expected)} tokens instead of {NEW_TOKENS}.")
    for position, (plain, speculated) in enumerate(zip(expected, actual, strict=True)):
        if plain != speculated:
            raise RoundTripFailed(
                f"With mode={mode}, token {position} of the answer is {speculated}, without speculation it is {plain}. "
                "The pair is not written, since its output would not be exact on this machine: please report it."
            )
