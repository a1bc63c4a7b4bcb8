"""LatestIndex: the longest suffix of a text that occurred in it before, and its latest occurrence."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

_ODD, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


class LatestIndex:
    """Every n-gram of up to `longest` tokens in a growing text, with the place of its latest occurrence.

    Places are sorted by the tokens before them, the nearest first, in binary search trees, one for each nearest token,
    in which a later place is always above an earlier one (as in the match finder of I. Pavlov's LZMA). All places that
    follow one n-gram are neighbours in that order, so a search for it meets the latest of them first. Of places that
    agree in `longest` tokens only the latest is kept. A token costs two numbers, however long n-grams are, and
    comparisons that grow with the logarithm of the number of its occurrences: tokens are sorted by a hash, so that no
    order of tokens that is likely in a text makes a tree deep.
    """

    __slots__ = ("_longest", "_roots", "_sides")

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._roots: dict[int, int] = {}  # by token, the place after its latest occurrence
        self._sides = array("q", (0, 0))  # of each place, those below it that sort before and after it; 0 is none

    @property
    def num_tokens(self) -> int:
        return len(self._sides) // 2 - 1

    def extend(self, tokens: SequenceOf[int], end: int) -> None:
        """Take the text `tokens[:end]`, which begins with what was taken before."""
        for place in range(len(self._sides) // 2, end + 1):
            self._insert(tokens, place)

    def match(self, tokens: SequenceOf[int], tail: SequenceOf[int]) -> tuple[int, int]:
        """The length of the longest suffix of `tail` that occurs in the text, and the place after its latest
        occurrence.

        `tail`: up to `longest` tokens, at least one. Both are 0 where its last token does not occur.
        """
        best, found = 0, 0
        for place, same, _ in self._path(tokens, tail):
            if same > best:
                best, found = same, place
            if same == len(tail):
                break
        return best, found

    def _insert(self, tokens: SequenceOf[int], new: int) -> None:
        """Make a place the root, and distribute the places that its search meets to its two sides."""
        sides, tail = self._sides, tokens[max(0, new - self._longest) : new]
        sides.extend((0, 0))
        before, after = 2 * new, 2 * new + 1  # where the next of each side belongs
        left = right = 0
        for place, same, is_before in self._path(tokens, tail):
            if same == self._longest:
                left, right = sides[2 * place], sides[2 * place + 1]
                break
            if is_before:
                sides[before], before = place, 2 * place + 1
            else:
                sides[after], after = place, 2 * place
        sides[before], sides[after] = left, right
        self._roots[tail[-1]] = new

    def _path(self, tokens: SequenceOf[int], tail: SequenceOf[int]) -> Iterator[tuple[int, int, bool]]:
        """The places that a search for a tail meets, the latest first: how many tokens before each are the same, and
        whether it sorts before the tail."""
        place = self._roots.get(tail[-1], 0)
        same_before = same_after = 1  # as at the nearest place met on either side; all in between share as many
        while place:
            same, most = min(same_before, same_after), min(len(tail), place)
            while same < most and tail[-1 - same] == tokens[place - 1 - same]:
                same += 1
            is_before = same < len(tail) and (
                same == place or _scattered(tokens[place - 1 - same]) < _scattered(tail[-1 - same])
            )
            yield place, same, is_before
            if is_before:
                same_before, place = same, self._sides[2 * place + 1]
            else:
                same_after, place = same, self._sides[2 * place]


def _scattered(token: int) -> int:
    """A different number for each token, in no particular order."""
    mixed = token * _ODD & _MASK
    return (mixed ^ mixed >> 32) * _ODD & _MASK
