"""DraftModel: drafts with a small model that has the target's vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...engine.block_pool import BlockPool, BlockTable, OutOfBlocks
from ...engine.request import Request
from ...engine.sampling import Logits
from ...model.target import PREFILL_ROWS, Target, Window, prefill
from .base import Proposal, Score, Wanted, common_length, one_by_one
from .scoring import proposals, scores

REACH = 256  # most tokens of a text that the model is fed at first

# Initial weights, bias first. In greedy decoding the model's log-odds are used almost as they are; where it samples,
# the shared noise makes the target agree more often than they say.
PRIORS = {"draft_model": (0.7, 1.8, 0.0), "draft_model sampled": (0.4, 0.4, 0.0)}


@dataclass(slots=True)
class _Progress:
    """What the draft model's cache holds of one request, and of the draft after it: `tokens`, from `begin` on."""

    table: BlockTable
    begin: int
    tokens: list[int]  # rejected drafts included


class DraftModel:
    """Drafts with a model, token by token, in a cache of its own.

    It samples with the target's settings and the target's noise, so that both models choose the same token as often as
    is possible for two that do not know each other's probabilities (Daliri et al., arXiv 2408.07978). It runs only for
    proposals that are asked for, and reads the tokens that it has missed in one pass. Of a long text it reads the last
    `reach` tokens, as what lies far back helps a small model little and costs much (Sun et al., TriForce, arXiv
    2404.11912); when its context is full, it begins again with these. Where its cache is full, it proposes nothing.
    """

    name = "draft_model"
    reads_ahead = True
    depth: int | None = None

    def __init__(self, model: Target, pool: BlockPool, max_context: int, reach: int = REACH) -> None:
        self._model = model
        self._pool = pool
        self._max_context = max_context
        self._reach = min(reach, max_context // 2)
        self._progress: dict[Request, _Progress] = {}

    def propose(self, request: Request, ahead: Sequence[int] = ()) -> Iterator[Proposal]:
        return one_by_one(self, request, ahead)

    def generate(self, wanted: Wanted) -> list[Proposal | None]:
        return proposals(self.name, wanted, self._run(wanted, 1))

    def score(self, wanted: Wanted) -> list[list[Score] | None]:
        return scores(self.name, wanted, self._run(wanted, None))

    def _run(self, wanted: Wanted, num_rows: int | None) -> list[list[Logits] | None]:
        """The last `num_rows` logits for each request and the tokens ahead of it; if None, those after the request and
        after each token ahead."""
        windows: dict[int, Window] = {}
        for i, (request, ahead) in enumerate(wanted):
            progress = self._prepared(request, ahead)
            if progress is None:
                continue
            tokens = [*request.tokens[progress.begin :], *ahead]
            rows = num_rows or 1 + len(ahead)
            start = min(common_length(progress.tokens, tokens), len(tokens) - rows)
            progress.tokens = tokens[:start]  # should the pass fail
            if len(tokens) - start > PREFILL_ROWS:
                prefill(self._model, tokens[:-rows], start, progress.table.blocks)
                start = len(tokens) - rows
            windows[i] = Window(tokens[start:], start, progress.table.blocks, rows)
        if not windows:
            return [None] * len(wanted)
        logits = dict(zip(windows, self._model.forward(list(windows.values())), strict=True))
        for i in windows:
            request, ahead = wanted[i]
            progress = self._progress[request]
            text = request.tokens[progress.begin :]
            progress.tokens = [*text, *ahead]
            self._pool.publish(progress.table, text, len(text))
        return [list(logits[i]) if i in logits else None for i in range(len(wanted))]

    def num_behind(self, request: Request, ahead: Sequence[int] = ()) -> int:
        begin, cached = self._known(request, ahead)
        whole = 0 if cached else self._model.rows.whole_prompt or 0  # takes as long however few tokens are read
        return max(1, whole, len(request.tokens) + len(ahead) - begin - cached)

    def release(self, request: Request) -> None:
        progress = self._progress.pop(request, None)
        if progress is not None:
            self._pool.close(progress.table)

    def _known(self, request: Request, ahead: Sequence[int]) -> tuple[int, int]:
        """The position from which the model reads a request and the tokens ahead, and how many tokens from there its
        cache holds."""
        progress, tokens, num_ahead = self._progress.get(request), request.tokens, len(ahead)
        if progress is not None and len(tokens) - progress.begin + num_ahead < self._max_context:
            return progress.begin, common_length(progress.tokens, [*tokens[progress.begin :], *ahead])
        known = self._pool.num_known(tokens)
        if len(tokens) - known <= self._reach and len(tokens) + num_ahead < self._max_context:
            return 0, known
        begin = max(0, len(tokens) - self._reach)
        return begin, self._pool.num_known(tokens[begin:])

    def _prepared(self, request: Request, ahead: Sequence[int]) -> _Progress | None:
        """A request's cache with room for a draft; None if there is no room."""
        begin, _ = self._known(request, ahead)
        progress, text = self._progress.get(request), request.tokens[begin:]
        num_slots = len(text) + len(ahead)
        if num_slots >= self._max_context:
            return None
        if progress is not None and progress.begin != begin:
            self.release(request)
            progress = None
        try:
            if progress is None:
                table, num_shared = self._pool.open(text, num_slots)
                progress = self._progress[request] = _Progress(table, begin, text[:num_shared])
            else:
                self._pool.grow(progress.table, num_slots)
        except OutOfBlocks:
            return None
        return progress
