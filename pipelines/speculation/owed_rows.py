"""OwedRows: the rows by which prompts make up for drafts in the passes that read them."""

from __future__ import annotations

from .cost import CostModel

MOST_SHARE = 0.9  # beyond that, rows take nearly as long as the passes that they make up for


class OwedRows:
    """A prompt that is read beside answers waits in each pass for the drafts of those. So it is owed the rows that
    would have been read in that time beside plain decoding, and gets them in later passes. What they take is a delay by
    drafts, too, which the answers' budgets have to bear.

    number: rows due in the next pass, in addition to as many as beside plain decoding.
    """

    def __init__(self) -> None:
        self._owed = 0.0
        self._num_read = self._num_given = 0  # of this pass, as beside plain decoding and in addition
        self._num_plain = 0  # rows of this pass without drafts and what was given
        self._plain_ms = 0.0  # of this pass

    @property
    def number(self) -> int:
        return int(self._owed)

    def give(self, cost: CostModel, num_others: int, num_read: int, num_given: int) -> float:
        """Begin a pass with `num_others` rows of answers and `num_read` of prompts, and in addition `num_given` that
        were owed. Returns what those take, in milliseconds."""
        self._num_read, self._num_given = (num_read if num_others else 0), num_given  # a prompt alone waits for nobody
        self._num_plain = num_others + num_read
        self._plain_ms = cost.size_ms(self._num_plain)
        return cost.size_ms(self._num_plain + num_given) - self._plain_ms

    def share(self, cost: CostModel) -> float:
        """The share of what a delay of this pass costs in the end that goes into owed rows. With a share s the rows
        owed for a delay d take s d, those owed for that time take s² d, and so on, so that all of it is d / (1 - s)."""
        if not self._num_read:
            return 0.0
        rows_ms = cost.size_ms(self._num_plain + self._num_read) - self._plain_ms
        return min(MOST_SHARE, rows_ms / self._plain_ms)

    def passed(self, delay_ms: float) -> None:
        """End the pass, which took `delay_ms` longer because of drafts, what was given included. Where nothing is left
        to read, nothing is owed any more."""
        if not self._num_read:
            self._owed = 0.0
            return
        self._owed = max(0.0, self._owed - self._num_given + self._num_read * delay_ms / self._plain_ms)
