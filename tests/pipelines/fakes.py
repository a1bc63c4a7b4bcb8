"""Stand-ins without weights: a model that answers from what its cache really holds, and a byte-level tokenizer."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from outrider.pipelines.config import GenerationConfig
from outrider.pipelines.engine.block_pool import BlockPool
from outrider.pipelines.engine.engine import Engine
from outrider.pipelines.engine.request import Request
from outrider.pipelines.model.heads.head_model import HeadWindow
from outrider.pipelines.model.target import Rows, Window
from outrider.pipelines.speculation.acceptance import AcceptanceModel
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.drafter_set import DrafterSet
from outrider.pipelines.speculation.drafters import draft_model, grammar, head, recycling, self_speculative, suffix
from outrider.pipelines.speculation.drafters.base import Drafter, ModeDrafters
from outrider.pipelines.speculation.drafters.draft_model import DraftModel
from outrider.pipelines.speculation.drafters.head import Head
from outrider.pipelines.speculation.drafters.self_speculative import SelfSpeculative
from outrider.pipelines.speculation.planner import Planner

Row = NDArray[np.float32]  # [vocabulary]
Rule = Callable[[Sequence[int]], Row]

EMPTY = -1
BLOCK_SIZE = 4
VOCABULARY = 12


def random_rule(salt: int = 0, vocabulary: int = VOCABULARY) -> Rule:
    """Logits that depend on every token of the prefix and on nothing else."""

    def rule(prefix: Sequence[int]) -> Row:
        digest = zlib.crc32(np.asarray(prefix, np.int64).tobytes(), salt)
        return np.random.default_rng(digest).normal(0, 2, vocabulary).astype(np.float32)

    return rule


def mixed_rule(rule: Rule, other: Rule, share: float) -> Rule:
    """A draft's view of `rule`: mixed with a share of something else."""
    return lambda prefix: ((1 - share) * rule(prefix) + share * other(prefix)).astype(np.float32)


def remembered(rule: Rule) -> Rule:
    """The same rule, quicker where the logits of the same prefixes are asked for again."""
    known = cache(rule)
    return lambda prefix: known(tuple(prefix))


class FakeModel:
    """Takes the place of PagedModel. The prefix given to `rule` is read back from the slots of the cache.

    So a block that two requests own, a slot written over too early or a wrong position changes the answer, as it would
    with a real model. A window of one token leaves a second one after it, as there. `before_pass` is called with the
    windows of each pass.
    """

    def __init__(self, rule: Rule, num_blocks: int = 64, block_size: int = BLOCK_SIZE) -> None:
        self.rule = rule
        self.vocabulary_size = len(rule([0]))
        self.windows: list[Window] = []
        self.num_passes = self.num_taken_over = 0
        self.before_pass: Callable[[Sequence[Window]], None] = lambda windows: None
        self.rows = Rows()
        self._block_size = block_size
        self.resize(num_blocks)

    def resize(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._slots = np.full((num_blocks, self._block_size), EMPTY)

    def occupy(self, blocks: Sequence[int]) -> None:
        self._slots[list(blocks)] = 1

    def forward(self, windows: Sequence[Window]) -> list[NDArray[np.float32]]:
        self.num_passes += 1
        self.windows += windows
        self.before_pass(windows)
        assert sum(len(window.tokens) for window in windows) <= self.rows.most, "too many rows"
        self._write(windows)
        for window in windows:
            behind = window.start + 1
            if len(window.tokens) == 1 and behind < len(window.blocks) * self._block_size:
                self._slots[window.blocks[behind // self._block_size], behind % self._block_size] = window.tokens[0]
        return [self._logits(window) if window.blocks else np.empty((0, self.vocabulary_size)) for window in windows]

    def hidden_states(self) -> list[Row]:
        return []

    def prefill(self, tokens: Sequence[int], num_cached: int, blocks: Sequence[int]) -> Row:
        start = min(num_cached, len(tokens) - 1)
        return self.forward([Window(tokens[start:], start, blocks)])[0][-1]

    def _write(self, windows: Sequence[Window]) -> None:
        for window in windows:
            assert window.tokens, "nothing is fed"
            if window.num_rows or window.blocks:  # else it only fills the pass
                for position, token in enumerate(window.tokens, window.start):
                    self._slots[window.blocks[position // self._block_size], position % self._block_size] = token

    def _logits(self, window: Window) -> NDArray[np.float32]:
        return self._by_rule(self.rule, window)

    def _by_rule(self, rule: Rule, window: Window) -> NDArray[np.float32]:
        prefix = self._prefix(window)
        return np.array([rule(prefix[: len(prefix) - back]) for back in reversed(range(window.num_rows))])

    def _prefix(self, window: Window) -> list[int]:
        """The text up to the end of a window."""
        prefix = self._slots[list(window.blocks)].reshape(-1)[: window.start + len(window.tokens)]
        assert EMPTY not in prefix, "a slot is read that was never written"
        return prefix.tolist()


class FakeSplit(FakeModel):
    """Takes the place of a SplitModel with taps. A draft is written to the cache and foreseen by another rule. The
    hidden state of a token is the number of the text up to it in `texts`.

    drafted: the windows of each pass of a draft.
    """

    def __init__(self, rule: Rule, draft_rule: Rule, num_blocks: int = 64) -> None:
        super().__init__(rule, num_blocks)
        self.drafted: list[Sequence[Window]] = []
        self.texts: list[list[int]] = []
        self._draft_rule = draft_rule
        self._known: dict[tuple[int, int], int] = {}  # tokens of drafts by slot
        self._states: list[Row] = []

    def forward(self, windows: Sequence[Window]) -> list[NDArray[np.float32]]:
        self.forget_drafts()
        logits = super().forward(windows)
        self._states = [self._numbered(window) for window in windows]
        return logits

    def hidden_states(self) -> list[Row]:
        return self._states

    def draft(self, windows: Sequence[Window]) -> list[NDArray[np.float32]]:
        self.drafted.append(windows)
        self._write(windows)
        for window in windows:
            self._known |= {self._slot(window, i): token for i, token in enumerate(window.tokens)}
        return [self._by_rule(self._draft_rule, window) for window in windows]

    def num_drafted(self, window: Window) -> int:
        unlike = (i for i, token in enumerate(window.tokens) if self._known.get(self._slot(window, i)) != token)
        return next(unlike, len(window.tokens))

    def forget_drafts(self) -> None:
        self._known.clear()

    def _slot(self, window: Window, place: int) -> tuple[int, int]:
        block, slot = divmod(window.start + place, self._block_size)
        return (window.blocks[block] if block < len(window.blocks) else EMPTY), slot

    def _numbered(self, window: Window) -> Row:
        if not window.blocks:
            return np.empty((0, 1), np.float32)
        prefix, first = self._prefix(window), len(self.texts)
        self.texts += [prefix[: at + 1] for at in range(window.start, len(prefix))]
        return np.arange(first, len(self.texts), dtype=np.float32)[:, np.newaxis]


class FakeHead:
    """Takes the place of a head's model for a `FakeSplit`. After the text that a hidden state stands for, and the token
    after it, it proposes by a rule, from a vocabulary of its own. It needs no cache for that.

    texts: those of the target, to which it adds its own.
    """

    depth: int | None = None
    weight_bytes = cache_bytes = 0

    def __init__(
        self, texts: list[list[int]], rule: Rule, vocabulary: Sequence[int] | None = None, reach: int = 16
    ) -> None:
        self.reach = reach
        self.vocabulary = np.arange(len(rule([0]))) if vocabulary is None else np.array(vocabulary)
        self._texts, self._rule = texts, rule

    def forward(self, windows: Sequence[HeadWindow]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        first = len(self._texts)
        self._texts += [[*self._texts[int(window.states[-1, 0])], window.tokens[-1]] for window in windows]
        logits = [self._rule(text)[self.vocabulary] for text in self._texts[first:]]
        return np.array(logits), np.arange(first, len(self._texts), dtype=np.float32)[:, np.newaxis]


class FakeTokenizer:
    """Token i stands for `pieces[i]`, any bytes."""

    takes_back = False

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._pieces[i] for i in ids).decode(errors="replace")

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        return [self.decode(ids) for ids in batch]


MODELS = (DraftModel, Head, SelfSpeculative)


def acceptance() -> AcceptanceModel:
    kinds = (grammar, suffix, recycling, draft_model, head, self_speculative)
    return AcceptanceModel({kind: prior for each in kinds for kind, prior in each.PRIORS.items()})


def mode_drafters(drafters: Mapping[str, Drafter]) -> dict[str, ModeDrafters]:
    """Every mode's drafters, of those that are there, by the mode that runs one alone."""

    def chain(*modes: str) -> ModeDrafters:
        chosen = [drafters[mode] for mode in modes if mode in drafters]
        texts = tuple(drafter for drafter in chosen if not isinstance(drafter, MODELS))
        return ModeDrafters(texts, tuple(drafter for drafter in chosen if isinstance(drafter, MODELS)))

    alone = {mode: chain(mode) for mode in ("lookup", "suffix", "recycling", "draft", "head", "skip", "exit")}
    every = chain("suffix", "recycling", "draft", "head", "skip", "exit")
    return {"off": ModeDrafters(), **alone, "chained": every, "auto": every}


def fake_engine(
    model: FakeModel,
    drafters: Mapping[str, Drafter] | None = None,
    cost: CostModel | None = None,
    pool: BlockPool | None = None,
) -> tuple[Engine, BlockPool]:
    """An engine and the pool of its cache, which is given where a drafter shares it."""
    pool = pool or BlockPool(model.num_blocks, BLOCK_SIZE)
    made = acceptance()
    drafter_set = DrafterSet(mode_drafters(drafters or {}), made, model.vocabulary_size, clock=lambda: 0.0)
    planner = Planner(drafter_set, made, cost, clock=lambda: 0.0)  # time does not matter
    return Engine(model, pool, planner), pool


def new_request(prompt: Sequence[int], max_new_tokens: int = 16, answer: int = 0, **options: object) -> Request:
    """A request to the engine without text. Drafts are 5 tokens long unless told otherwise."""
    config = GenerationConfig(**{"mode": "off", "num_assistant_tokens": 5, **options})
    return Request(prompt, config, max_new_tokens, answer=answer)


def run(engine: Engine, *requests: Request) -> None:
    """Serve these requests to their ends, all at once. Raises what a request failed with."""
    for request in requests:
        engine.add(request)
    while any(not request.finished for request in requests):
        engine.step()
    for request in requests:
        if request.error is not None:
            raise request.error
