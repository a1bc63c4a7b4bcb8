"""SplitModel: a target that drafts with some of its own layers, and keeps what these have computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from .paged_model import PagedModel, Request, compiled_on_cpu, read_model
from .paged_request import BLOCK_SIZE, PagedRequest
from .pair import Skipping
from .parts import STATES, cut
from .taps import HIDDEN_STATES, tapped
from .target import Window

States = NDArray[np.float32]


class SplitModel(PagedModel):
    """A `PagedModel` in parts, each compiled once. The target runs all of them; a draft leaves out those of the layers
    that it skips (self-speculative decoding; Zhang et al., arXiv 2309.08168), or all layers from one on, which is early
    exit (Kangaroo, arXiv 2404.18911).

    A draft's row and the target's row for the same token use the same slot of the same cache. Before the first skipped
    layer they are bitwise the same, so the first part computes a drafted row only once, and `forward` takes over its
    states. In the later layers the target's row overwrites the draft's.

    is_apart: whether every layer is a part of its own, so that `skip` can choose others.
    """

    def __init__(
        self,
        folder: Path,
        num_blocks: int,
        skipping: Skipping,
        properties: Mapping[str, Any] | None = None,
        exact: bool = True,
        longest: int | None = None,
        taps: Sequence[int] = (),
        is_apart: bool = False,
    ) -> None:
        self._is_apart = is_apart
        self.skipping = skipping
        self._taps = taps
        self._chain = _Chain()
        super().__init__(folder, num_blocks, properties, exact, longest)
        self._has_taps = bool(taps)
        self._drafted: dict[int, tuple[int, list[States]]] = {}  # by slot: a token, and the outputs of the first part
        self._exit = None if skipping.head is None else _Exit(skipping.head, properties or {})

    @property
    def exit_bytes(self) -> int:
        """Weights that only drafts need."""
        return 0 if self._exit is None else self._exit.weight_bytes

    def forward(self, windows: Sequence[Window]) -> list[States]:
        try:
            taken = [self.num_drafted(window) for window in windows]
            if not any(taken):
                return super().forward(windows)
            inputs, lengths = self._inputs(windows)
            states = self._behind_first(windows, taken, sum(lengths))
            self.num_taken_over += sum(taken)
            return self._results(windows, lengths, self._chain.infer_behind(inputs, states))
        finally:
            self.forget_drafts()

    def draft(self, windows: Sequence[Window]) -> list[States]:
        """Run rows of drafts in one pass; logits float32 [num_rows, vocabulary] for each window, in memory that the
        next pass overwrites.

        A window begins after its sequence's cached tokens, or after tokens that were drafted since the last `forward`.
        """
        inputs, _ = self._inputs(windows)
        outputs = self._chain.first.infer(inputs)
        self._remember(windows, outputs)
        states = self._chain.infer_short(inputs, outputs[0], self._exit)
        wanted = np.cumsum([w.num_rows for w in windows])
        return np.split(states.reshape(-1, self.vocabulary_size), wanted)[:-1]

    def skip(self, layers: Sequence[int]) -> None:
        """Skip other layers in drafts from now on, which must make up whole parts of the model."""
        self.forget_drafts()
        self._chain.skip(layers)

    @property
    def draft_share(self) -> float:
        """The share of the weights that a row of a draft reads."""
        read = [part for part, is_skipped in zip(self._chain.bytes, self._chain.skips, strict=True) if not is_skipped]
        return sum(read) / sum(self._chain.bytes)

    def num_drafted(self, window: Window) -> int:
        """How many of a window's first tokens have been drafted since the last `forward`."""
        number = 0
        for i, token in enumerate(window.tokens):
            known = self._drafted.get(_slot(window, i))
            if known is None or known[0] != token:
                break
            number += 1
        return number

    def forget_drafts(self) -> None:
        """Take over nothing of what was drafted so far."""
        self._drafted.clear()

    def resize(self, num_blocks: int) -> None:
        self.forget_drafts()
        super().resize(num_blocks)

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object:
        self.forget_drafts()
        return super().blind_pass(rows, context, blocks)

    def _parts_of(self, model: ov.Model, folder: Path) -> list[ov.Model]:
        taps = tapped(model, self._taps, folder) if self._taps else ()
        is_normed = self.skipping.head is not None
        parts = cut(model, self.skipping.layers, is_normed, taps, folder, self._is_apart)
        self._chain.taps = [part.taps for part in parts]
        self._chain.layers = [part.layers for part in parts]
        self._chain.bytes = [part.weight_bytes for part in parts]
        self._chain.skip(self.skipping.layers)
        return [part.model for part in parts]

    def _request_of(self, parts: Sequence[PagedRequest]) -> Request:
        self._chain.requests = parts
        return self._chain

    def _behind_first(self, windows: Sequence[Window], taken: Sequence[int], num_rows: int) -> list[States]:
        """The first part's outputs for all rows of a pass, of which it runs only those that no draft has computed."""
        rest = [
            Window(w.tokens[number:], w.start + number, w.blocks, 0)
            for w, number in zip(windows, taken, strict=True)
            if number < len(w.tokens)
        ]
        computed: Sequence[States] = []
        if rest:
            inputs, _ = self._inputs(rest)
            computed = self._chain.first.infer(inputs)
        rows: list[list[States]] = []
        place = 0
        for window, number in zip(windows, taken, strict=True):
            rows += [self._drafted[_slot(window, i)][1] for i in range(number)]
            rows += [[each[i : i + 1] for each in computed] for i in range(place, place + len(window.tokens) - number)]
            place += len(window.tokens) - number
        rows += [[np.zeros_like(each) for each in rows[0]]] * (num_rows - len(rows))  # padding
        return [np.concatenate(each) for each in zip(*rows, strict=True)]

    def _remember(self, windows: Sequence[Window], outputs: Sequence[States]) -> None:
        place = 0
        for window in windows:
            for i, token in enumerate(window.tokens):
                if (slot := _slot(window, i)) >= 0:
                    self._drafted[slot] = token, [each[place + i : place + i + 1].copy() for each in outputs]
            place += len(window.tokens)
            behind = len(window.tokens)
            while self._drafted.pop(_slot(window, behind), None) is not None:  # they followed other tokens
                behind += 1


class ShortModel:
    """A `SplitModel` without the layers that it skips, as a model that drafts: it has neither weights nor a cache of
    its own, except for an exit head."""

    cache_bytes = 0

    def __init__(self, target: SplitModel) -> None:
        self.target = target
        self.weight_bytes = target.exit_bytes

    def occupy(self, blocks: Sequence[int]) -> None:
        self.target.occupy(blocks)

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object:
        """A pass of `rows` rows after `context` tokens, in as many passes as the target needs, in order to time it."""
        most, logits = self.target.rows.most, None
        for begin in range(0, rows, most):
            number = min(most, rows - begin)
            logits = self.target.draft([Window([0] * number, context + begin, blocks)])
        self.target.forget_drafts()
        return logits


class _Exit:
    """The head of an early exit: from the residual stream to what the projection reads."""

    def __init__(self, folder: Path, properties: Mapping[str, Any]) -> None:
        core = ov.Core()
        self._compiled = compiled_on_cpu(core, read_model(core, folder), folder, properties)
        self._request = self._compiled.create_infer_request()
        self.weight_bytes = (folder / "openvino_model.bin").stat().st_size

    def infer(self, states: States) -> States:
        flat = states.reshape(len(states), -1)
        normed: States = self._request.infer({HIDDEN_STATES: flat}, share_inputs=True, share_outputs=True)[0]
        return normed.reshape(states.shape)


class _Chain:
    """Runs parts one after the other, each over the cache of its own layers.

    taps, layers, bytes: of each part, see `Part`.
    skips: whether drafts leave it out.
    """

    taps: Sequence[tuple[int, ...]]
    layers: Sequence[range]
    bytes: Sequence[int]
    skips: Sequence[bool]
    requests: Sequence[PagedRequest]

    @property
    def first(self) -> PagedRequest:
        return self.requests[0]

    @property
    def spare_block(self) -> int:
        return self.first.spare_block

    @property
    def cache_bytes(self) -> int:
        return sum(each.cache_bytes for each in self.requests)

    def skip(self, layers: Sequence[int]) -> None:
        self.skips = [bool(each) and {*each} <= {*layers} for each in self.layers]

    def resize(self, num_blocks: int) -> None:
        for each in self.requests:
            each.resize(num_blocks)

    def occupy(self, blocks: Sequence[int]) -> None:
        for each in self.requests:
            each.occupy(blocks)

    def infer(self, inputs: Mapping[str, Any]) -> Sequence[States]:
        """Logits, and the taps, concatenated, float32 [rows, taps * width], if there are any."""
        return self.infer_behind(inputs, self.first.infer(inputs))

    def infer_behind(self, inputs: Mapping[str, Any], outputs: Sequence[States]) -> Sequence[States]:
        """As `infer`, from the outputs of the first part."""
        taps: dict[int, States] = {}
        for places, request in zip(self.taps, self.requests, strict=True):
            if request is not self.first:
                outputs = request.infer({**inputs, STATES: outputs[0]})
            taps |= zip(places, outputs[1:], strict=False)
        if not taps:
            return outputs
        return outputs[0], np.concatenate([taps[i].reshape(len(taps[i]), -1) for i in range(len(taps))], axis=1)

    def infer_short(self, inputs: Mapping[str, Any], states: States, exit_head: _Exit | None) -> States:
        """The logits of a draft, from the outputs of the first part."""
        for is_skipped, request in zip(self.skips[1:-1], self.requests[1:-1], strict=True):
            if not is_skipped:
                (states, *_) = request.infer({**inputs, STATES: states})
        if exit_head is not None:
            states = exit_head.infer(states)
        logits: States = self.requests[-1].infer({**inputs, STATES: states})[0]
        return logits


def _slot(window: Window, i: int) -> int:
    """The place of a window's row in the cache; -1 if it has none."""
    block, place = divmod(window.start + i, BLOCK_SIZE)
    return window.blocks[block] * BLOCK_SIZE + place if block < len(window.blocks) else -1
