"""PassSize: the number of rows that the passes of the target keep to."""

from __future__ import annotations

from collections.abc import Sequence

from .cost import CostModel


class PassSize:
    """A pass that has another number of rows than the last one takes `CostModel.changing_ms` longer. So a shorter pass
    is filled up to the size of the last, until what passes of the best size would have gained, since this one was last
    the best, is worth that (ski rental; Karlin et al., Competitive snoopy caching, 1988).

    rows: of the last pass, the filling included; 0 before the first.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._missed_ms = 0.0

    def last(self, cost: CostModel) -> int:
        """The size behind which the rows of the next pass are priced; 0 if that is to be left in any case."""
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
        """Run the next pass, with `rows` rows; the size that it has.

        bare_rows: those of the pass without drafts that were planned.
        probabilities: of each drafted token, that it is reached and accepted.
        rate: what a millisecond is worth, in tokens.
        may_fill: whether a shorter pass may be filled up.
        """
        rows, bare_rows = max(rows, cost.rows[0]), max(bare_rows, cost.rows[0])
        last = self.last(cost)
        stays = rows == last or (may_fill and rows < last and cost.size_ms(rows, last) == cost.size_ms(last))
        if stays:
            missed_ms = self._missed_by(cost, bare_rows, sorted(probabilities, reverse=True), rate)
            self._missed_ms = self._missed_ms + missed_ms if missed_ms else 0.0
            return self.rows
        self.rows, self._missed_ms = rows, 0.0
        return rows

    def _missed_by(self, cost: CostModel, rows: int, probabilities: Sequence[float], rate: float) -> float:
        """What a pass of the best size would have gained beyond one of this size, in milliseconds."""
        gain_ms, best_ms = 0.0, -cost.size_ms(rows)
        for more, probability in enumerate(probabilities, 1):
            gain_ms += probability / rate
            best_ms = max(best_ms, gain_ms - cost.size_ms(rows + more))
        return best_ms - (gain_ms - cost.size_ms(self.rows))
