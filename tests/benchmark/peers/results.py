"""What came of it: ratios on the same prompts, and whether a mode's text is that of its own plain decoding."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from outrider.app.bench.spread import Spread

from .base import Question, Reply

Who = tuple[str, str]  # peer and mode
BASE: Who = ("OpenVINO GenAI", "plain")
OURS: Who = ("Outrider", "auto")


@dataclass(frozen=True, slots=True)
class Line:
    """One mode of one peer on one family. `right` of `compared` greedy answers were those of its own plain decoding.

    is_biased: the text was sampled, and not from the distribution that plain decoding samples from.
    """

    family: str
    who: Who
    tokens_per_s: Spread | None
    to_base: Spread | None
    ours_to_it: Spread | None
    right: int
    compared: int
    is_biased: bool

    @property
    def is_right(self) -> bool:
        return self.right == self.compared and not self.is_biased


def lines(
    answers: Sequence[tuple[Question, Mapping[Who, Reply]]], plain_of: Mapping[str, str], biased: Collection[Who] = ()
) -> list[Line]:
    """For each family and each mode that answered all of it.

    plain_of: each peer's plain mode. biased: who does not sample from the model's distribution.
    """
    result = []
    for family in dict.fromkeys(question.task.family for question, _ in answers):
        there = [(question, replies) for question, replies in answers if question.task.family == family]
        for who in [who for who in there[0][1] if all(who in replies for _, replies in there)]:
            result.append(_line(family, who, (who[0], plain_of[who[0]]), there, who in biased))
    return result


def best_right(found: Sequence[Line], family: str, peer: str) -> Line | None:
    """The fastest mode of a peer whose text is right: its own plain decoding's, or sampled as that samples."""
    candidates = [
        line for line in found if (line.family, line.who[0]) == (family, peer) and line.is_right and line.tokens_per_s
    ]
    return max(candidates, key=lambda line: line.tokens_per_s.median if line.tokens_per_s else 0.0, default=None)


def _line(
    family: str, who: Who, plain: Who, there: Sequence[tuple[Question, Mapping[Who, Reply]]], is_biased: bool
) -> Line:
    rates = {name: [_rate(replies.get(name)) for _, replies in there] for name in (who, BASE, OURS)}
    greedy = [replies for question, replies in there if question.is_greedy and plain in replies]
    return Line(
        family=family,
        who=who,
        tokens_per_s=Spread.of(rates[who]),
        to_base=Spread.of_ratios(rates[who], rates[BASE]),
        ours_to_it=Spread.of_ratios(rates[OURS], rates[who]),
        right=sum(replies[who].token_ids == replies[plain].token_ids for replies in greedy),
        compared=len(greedy),
        is_biased=is_biased and not all(question.is_greedy for question, _ in there),
    )


def _rate(reply: Reply | None) -> float | None:
    return None if reply is None else reply.tokens_per_s
