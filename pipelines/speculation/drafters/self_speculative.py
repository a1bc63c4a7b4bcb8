"""SelfSpeculative: drafts with the target itself, without some of its layers or with the first ones only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...engine.block_pool import BlockPool, OutOfBlocks
from ...engine.request import Request
from ...engine.sampling import Logits
from ...model.split_model import SplitModel
from ...model.target import Window
from .base import Proposal, Score, Wanted, one_by_one
from .scoring import proposals, scores

SKIPPING, EXIT = "layer_skipping", "early_exit"  # names of the drafter

# Initial weights, bias first; those of a draft model.
PRIORS = {
    kind: weights
    for name in (SKIPPING, EXIT)
    for kind, weights in {name: (0.7, 1.8, 0.0), f"{name} sampled": (0.4, 0.4, 0.0)}.items()
}


@dataclass(slots=True)
class _Rows:
    """Rows that are still to be computed for a request, from position `start` on, and the logits of the wanted ones,
    which are the last `num_wanted`."""

    tokens: list[int]
    start: int
    num_wanted: int
    logits: list[Logits] = field(default_factory=list)


class SelfSpeculative:
    """Drafts with the target itself (see `SplitModel`), token by token, in the target's cache after the accepted text.

    There is nothing to catch up with, as the cache holds the accepted text. It samples with the target's settings and
    noise, as a draft model does (see `DraftModel`). It proposes nothing where no block is free, and where the last
    token is in a block that other requests read.

    name: SKIPPING or EXIT.
    pool: of the target's cache.
    """

    reads_ahead = True
    depth: int | None = None

    def __init__(self, name: str, model: SplitModel, pool: BlockPool) -> None:
        self.name = name
        self._model = model
        self._pool = pool

    def propose(self, request: Request, ahead: Sequence[int] = ()) -> Iterator[Proposal]:
        return one_by_one(self, request, ahead)

    def generate(self, wanted: Wanted) -> list[Proposal | None]:
        return proposals(self.name, wanted, self._run(wanted, 1))

    def score(self, wanted: Wanted) -> list[list[Score] | None]:
        return scores(self.name, wanted, self._run(wanted, None))

    def num_behind(self, request: Request, ahead: Sequence[int] = ()) -> int:
        window = _window(request, ahead)
        return max(1, len(window.tokens) - self._model.num_drafted(window))

    def release(self, request: Request) -> None:
        self._model.forget_drafts()  # its blocks may soon be another's

    def _run(self, wanted: Wanted, num_rows: int | None) -> list[list[Logits] | None]:
        """The last `num_rows` logits for each request and the tokens ahead of it; if None, those after the request and
        after each token ahead."""
        prepared = [self._prepared(request, ahead, num_rows or 1 + len(ahead)) for request, ahead in wanted]
        while waiting := [i for i, rows in enumerate(prepared) if rows is not None and rows.tokens]:
            room = self._model.rows.most
            windows: dict[int, Window] = {}
            for i in waiting:
                rows = prepared[i]
                assert rows is not None
                tokens, rest = rows.tokens[:room], len(rows.tokens[room:])
                if tokens:
                    num_wanted = min(len(tokens), max(0, rows.num_wanted - rest))
                    windows[i] = Window(tokens, rows.start, wanted[i][0].table.blocks, num_wanted)
                    room -= len(tokens)
            for i, logits in zip(windows, self._model.draft(list(windows.values())), strict=True):
                rows = prepared[i]
                assert rows is not None
                number = len(windows[i].tokens)
                rows.logits.extend(logits.copy())
                rows.tokens, rows.start = rows.tokens[number:], rows.start + number
        return [None if rows is None else rows.logits for rows in prepared]

    def _prepared(self, request: Request, ahead: Sequence[int], num_rows: int) -> _Rows | None:
        """The rows to compute for a request, which has the blocks for them; None if it cannot have them."""
        window, table = _window(request, ahead), request.table
        if window.start < table.num_shared * self._pool.block_size:
            return None
        try:
            self._pool.grow(table, window.start + len(window.tokens))
        except OutOfBlocks:
            return None
        begin = min(self._model.num_drafted(window), len(window.tokens) - num_rows)
        return _Rows(list(window.tokens[begin:]), window.start + begin, num_rows)


def _window(request: Request, ahead: Sequence[int]) -> Window:
    """The last token of a request and those ahead of it."""
    return Window([request.tokens[-1], *ahead], len(request.tokens) - 1, request.table.blocks)
