"""DFlashModel: a head that drafts a block in one pass (DFlash, arXiv 2602.06036), over a key-value cache of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops
from openvino._offline_transformations import stateful_to_stateless_transformation

from ...errors import UnsupportedModel, reason_of
from ..graph import logits_of, projection_of, weight_bytes
from ..paged_model import compiled_on_cpu, read_model
from ..paged_request import BLOCK_SIZE
from ..pair import read_json
from ..taps import HIDDEN_STATES
from .embedding import add_embedding
from .head_model import REACH, HeadWindow, States
from .projection import STATES, share_projection

# What a head says of itself in its configuration, and in the runtime information of its IR under FACTS. optimum-intel
# writes all but the size there.
LAYERS, MASK, SIZE = "target_layer_ids", "mask_token_id", "block_size"
FACTS = "dflash"
LEAST_SIZE = 2  # the token that is known, and one that is drafted
PAST, PRESENT = "past_key_values.", "present."
BEFORE_FIRST = -1  # a place in a block


class DFlashModel:
    """Compiles the head in `folder`, as optimum-intel exports it, with the token embedding and the projection of the
    model in `target`, and a cache of `num_blocks` blocks. Not safe for concurrent calls.

    A pass with the target's states runs a block: the last token, and masks, which see each other and all of the text
    before. That gives the proposals for all masks, no matter which tokens are then drafted before each of them, and a
    row that continues a draft only projects the next one. The head's own states are the place of the last row that was
    projected, followed by the block's states. The cache holds what is computed from the target's states.

    depth: tokens that a block drafts.
    tap_width: of the target's states.

    Raises BrokenPair if an IR cannot be read, UnsupportedModel if it is no such head or was made for a target of
    another width, and InvalidOption for a property that the device refuses.
    """

    def __init__(
        self, folder: Path, target: Path, num_blocks: int, properties: Mapping[str, Any] | None = None
    ) -> None:
        core = ov.Core()
        model, theirs = read_model(core, folder), read_model(core, target)
        self.reach = REACH
        try:
            self._mask, self._size = (int(_fact(model, folder, name)) for name in (MASK, SIZE))
            if self._size < LEAST_SIZE:
                raise ValueError(f"its {SIZE} is {self._size}")
            self._width = model.output(STATES).partial_shape[-1].get_length()
            add_embedding(model, theirs, folder)
            projection = _projection(theirs, self._width, folder)
            stateful_to_stateless_transformation(model)
        except (RuntimeError, StopIteration, ValueError) as error:
            raise UnsupportedModel(
                f"{folder} is not built as optimum-intel builds DFlash heads ({reason_of(error)}): export it again."
            ) from error
        block, rows = (compiled_on_cpu(core, each, folder, properties) for each in (model, projection))
        self._num_drafted = self._size - 1
        self.depth: int | None = self._num_drafted
        self.tap_width = block.input(HIDDEN_STATES).partial_shape[-1].get_length()
        self.vocabulary: NDArray[np.int64] = np.arange(rows.output(0).partial_shape[-1].get_length())
        self._block, self._projection = block.create_infer_request(), rows.create_infer_request()
        self._caches: dict[str, NDArray[np.float32]] = {}  # [heads, blocks, BLOCK_SIZE, head size] each
        for port in block.inputs:
            if (name := port.get_any_name()).startswith(PAST):
                heads, _, size = (dim.get_length() if dim.is_static else 0 for dim in list(port.partial_shape)[1:])
                self._caches[name.removeprefix(PAST)] = np.zeros((heads, num_blocks, BLOCK_SIZE, size), np.float32)
        weights = (folder / "openvino_model.bin").stat().st_size
        self.weight_bytes = weights + weight_bytes(projection_of(logits_of(projection)))

    @property
    def cache_bytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches.values())

    def forward(self, windows: Sequence[HeadWindow]) -> tuple[NDArray[np.float32], States]:
        own = np.empty((len(windows), 1 + self._num_drafted * self._width), np.float32)
        for i, window in enumerate(windows):
            if window.is_own:
                own[i] = window.states[0]
        for together in self._grouped(windows):
            own[together] = self._run_blocks([windows[i] for i in together])
        own[:, 0] += 1
        blocks = own[:, 1:].reshape(len(own), self._num_drafted, self._width)
        rows = blocks[np.arange(len(own)), own[:, 0].astype(int)]
        logits = self._projection.infer({STATES: rows}, share_outputs=True)[0]
        return logits.reshape(len(windows), -1), own

    def occupy(self, blocks: Sequence[int]) -> None:
        for cache in self._caches.values():
            cache[:, blocks] = 0.1

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object:
        if rows > 1:
            return self.forward([HeadWindow([0] * rows, context, blocks, np.zeros((rows, self.tap_width), np.float32))])
        states = np.full((1, 1 + self._num_drafted * self._width), BEFORE_FIRST, np.float32)
        return self.forward([HeadWindow([0], context, blocks, states, is_own=True)])

    def _grouped(self, windows: Sequence[HeadWindow]) -> list[list[int]]:
        """The places of the windows whose blocks run in one inference. A long one runs alone, as the others would be
        filled up to its length."""
        short = [i for i, w in enumerate(windows) if not w.is_own and len(w.tokens) <= self._size]
        long = [[i] for i, w in enumerate(windows) if not w.is_own and len(w.tokens) > self._size]
        return [short, *long] if short else long

    def _run_blocks(self, windows: Sequence[HeadWindow]) -> States:
        """Put the rows of windows into the cache, and run the block after each. Returns the own states before the first
        place of each block. What the cache is fed holds whole blocks, so that it has few sizes; their ends are masked,
        and so is what fills a window up to the size of others, which comes first, for layers that see the latest only.
        """
        number, num_rows = len(windows), max(len(w.tokens) for w in windows)
        used = [list(w.blocks[: -(-w.start // BLOCK_SIZE)]) for w in windows]
        num_blocks = max(map(len, used))
        held = np.array([[*[0] * (num_blocks - len(blocks)), *blocks] for blocks in used], np.int64)
        num_slots = BLOCK_SIZE * num_blocks
        tokens = np.full((number, self._size), self._mask, np.int64)
        positions = np.zeros((number, num_rows + self._size), np.int64)
        seen = np.zeros((number, num_slots + num_rows + self._size), np.int64)
        states = np.zeros((number, num_rows, self.tap_width), np.float32)
        for i, window in enumerate(windows):
            rows, end = len(window.tokens), window.start + len(window.tokens)
            begin = num_slots - BLOCK_SIZE * len(used[i])
            tokens[i, 0] = window.tokens[-1]
            positions[i, num_rows - rows :] = range(window.start, end + self._size)
            seen[i, begin : begin + window.start] = seen[i, -rows - self._size :] = 1
            states[i, num_rows - rows :] = window.states
        inputs: dict[str, Any] = {
            "input_ids": tokens, "position_ids": positions, "attention_mask": seen, HIDDEN_STATES: states,
        }  # fmt: skip
        for name, cache in self._caches.items():
            past = cache[:, held].swapaxes(0, 1)
            inputs[PAST + name] = past.reshape(number, len(cache), num_slots, cache.shape[-1])
        outputs = self._block.infer(inputs, share_outputs=True)
        for i, window in enumerate(windows):
            places = np.arange(window.start, window.start + len(window.tokens))
            blocks, slots = np.asarray(window.blocks)[places // BLOCK_SIZE], places % BLOCK_SIZE
            for name, cache in self._caches.items():
                cache[:, blocks, slots] = outputs[PRESENT + name][i, :, -len(places) :]
        first = np.full((number, 1), BEFORE_FIRST, np.float32)
        return np.concatenate([first, outputs[STATES].reshape(number, -1)], 1, dtype=np.float32)


def layers_read(model: ov.Model, folder: Path) -> tuple[int, ...]:
    """The layers of its target that the head in `folder` reads, counted from 0. Raises UnsupportedModel."""
    return tuple(map(int, re.findall(r"\d+", _fact(model, folder, LAYERS))))


def _fact(model: ov.Model, folder: Path, name: str) -> str:
    """What the IR says of itself, or else the configuration next to it. Raises UnsupportedModel if neither does."""
    if model.has_rt_info([FACTS, name]):
        return str(model.get_rt_info([FACTS, name]).astype(str))
    config = read_json(folder / "config.json")
    found = config.get(name, (config.get("dflash_config") or {}).get(name))
    if found in (None, []):
        raise UnsupportedModel(
            f"{folder} is a DFlash head that does not say its {name}: copy this field from the config.json of the "
            f"checkpoint to {folder / 'config.json'}, or export the head again with `outrider export --head`."
        )
    return str(found)


def _projection(target: ov.Model, width: int, folder: Path) -> ov.Model:
    """A model of the target's projection alone, from STATES, float32 [rows, width], to logits."""
    states = ops.parameter([-1, width], ov.Type.f32, name=STATES)
    states.output(0).set_names({STATES})
    return ov.Model([ops.result(share_projection(states.output(0), target, folder))], [states])
