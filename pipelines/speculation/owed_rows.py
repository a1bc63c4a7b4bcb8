"""OwedRows: the rows by which prompts make up for drafts in the passes that read them."""

from __future__ import annotations

from .cost import CostModel

MOST_SHARE = 0.9  # beyond that, rows take nearly as long as the passes that they make up for


class OwedRows:
    """Drafts delay prompts read in the same passes. The rows that a prompt could have read in that time are made up
    later, and their time counts against the answers' budgets.

    number: rows due in the next pass, in addition to those that a pass with plain decoding would read.
    """

    def __init__(self) -> None:
        self._owed = 0.0
        self._num_read = self._num_given = 0  # of this pass: as with plain decoding, and in addition
        self._num_plain = 0  # rows of this pass without drafts and given rows
        self._plain_ms = 0.0  # of this pass

    @property
    def number(self) -> int:
        return int(self._owed)

    def give(self, cost: CostModel, num_others: int, num_read: int, num_given: int) -> float:
        """Begin a pass with `num_others` rows of answers and `num_read` of prompts, and in addition `num_given` that
        were owed. Returns the time of the given rows, in milliseconds."""
        self._num_read, self._num_given = (num_read if num_others else 0), num_given  # a prompt alone waits for nobody
        self._num_plain = num_others + num_read
        self._plain_ms = cost.size_ms(self._num_plain)
        return cost.size_ms(self._num_plain + num_given) - self._plain_ms

    def share(self, cost: CostModel) -> float:
        """The share of the total cost of a delay in this pass that goes into owed rows. With a share s, the rows owed
        for a delay d take s d, the rows owed for that time take s² d, and so on, so that the total is d / (1 - s)."""
        if not self._num_read:
            return 0.0
        rows_ms = cost.size_ms(self._num_plain + self._num_read) - self._plain_ms
        return min(MOST_SHARE, rows_ms / self._plain_ms)

    def passed(self, delay_ms: float) -> None:
        """End the pass, which took `delay_ms` longer because of drafts, given rows included. Where nothing is left to
        read, nothing is owed any more."""
        if not self._num_read:
            self._owed = 0.0
            return
        self._owed = max(0.0, self._owed - self._num_given + self._num_read * delay_ms / self._plain_ms)
