"""PassSize: the number of rows that the passes of the target keep to."""

from __future__ import annotations

from collections.abc import Sequence

from .cost import CostModel
from .draft import best_prefix


class PassSize:
    """A pass takes `CostModel.changing_ms` longer if its number of rows differs from that of the last one. Short passes
    are padded to the previous size until the gain missed by padding, since that size was last the best, exceeds the
    cost of changing size (ski rental; Karlin et al., Competitive snoopy caching, 1988).

    rows: rows of the last pass, padding included; 0 before the first.
    num_filling: how many of them are padding.
    has_changed: whether the pass before it had another size.
    """

    def __init__(self) -> None:
        self.rows = self.num_filling = 0
        self.has_changed = False
        self._bare_rows = 0  # of the last pass without planned drafts
        self._has_bare_changed = False
        self._missed_ms = self._priced_ms = 0.0

    def last(self, cost: CostModel) -> int:
        """The last size, on which the prices of the next pass's rows depend; 0 if the size is to be changed in any
        case."""
        return self.rows if self._missed_ms <= cost.changing_ms else 0

    def take(
        self,
        cost: CostModel,
        rows: int,
        bare_rows: int,
        probabilities: Sequence[float] = (),
        rate: float = 1.0,
        may_fill: bool = True,
    ) -> int:
        """Note the next pass, with `rows` rows, and return the size that it is to have.

        bare_rows: rows of the pass without planned drafts.
        probabilities: of each drafted token, that it is reached and accepted.
        rate: what a millisecond is worth, in tokens.
        may_fill: whether a shorter pass may be padded.
        """
        num_needed, last, before = rows, self.last(cost), self.rows
        self._priced_ms = cost.size_ms(rows, last) - cost.size_ms(bare_rows, last)
        rows, bare_rows = max(rows, cost.rows[0]), max(bare_rows, cost.rows[0])
        self._has_bare_changed, self._bare_rows = self._changes(cost, bare_rows), bare_rows
        if rows == last or (may_fill and rows < last and cost.size_ms(rows, last) == cost.size_ms(last)):
            missed_ms = self._missed_by(cost, bare_rows, sorted(probabilities, reverse=True), rate)
            self._missed_ms = self._missed_ms + missed_ms if missed_ms else 0.0
        else:
            self.rows, self._missed_ms = rows, 0.0
        self.has_changed = self.rows != before
        # The target itself pads passes to the fewest rows.
        self.num_filling = self.rows - num_needed if self.rows > cost.rows[0] else 0
        return self.rows

    def standing_ms(self, cost: CostModel, bare_rows: int) -> tuple[float, float]:
        """How much longer a pass without planned drafts takes because of the size of the last, and how much of that is
        due to earlier drafts: with plain decoding the size changes, too."""
        standing_ms = cost.size_ms(bare_rows, self.last(cost)) - cost.size_ms(bare_rows)
        return standing_ms, max(0.0, standing_ms - self._changes(cost, bare_rows) * cost.changing_ms)

    def delay_ms(self, cost: CostModel) -> float:
        """How much longer the last pass took than without drafts in it and before it."""
        changing_ms = (self.has_changed - self._has_bare_changed) * cost.changing_ms
        return cost.size_ms(self.rows) - cost.size_ms(self._bare_rows) + changing_ms

    def unpriced_ms(self, cost: CostModel) -> float:
        """How much of `delay_ms` was not in the price of the pass's rows."""
        return self.delay_ms(cost) - self._priced_ms

    def _changes(self, cost: CostModel, bare_rows: int) -> bool:
        """Whether the size would change without any planned drafts."""
        return max(bare_rows, cost.rows[0]) != self._bare_rows

    def _missed_by(self, cost: CostModel, rows: int, probabilities: Sequence[float], rate: float) -> float:
        """What a pass of the best size would have gained beyond one of this size, in milliseconds."""
        length, _ = best_prefix(probabilities, cost.rows_ms(rows, 1, 0, len(probabilities)), rate)
        return cost.size_ms(self.rows) - cost.size_ms(rows + length) - sum(probabilities[length:]) / rate
