"""NpuModel: a model on an NPU, compiled for fixed shapes and for one sequence at a time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ..errors import InvalidOption, UnsupportedDevice, UnsupportedModel, reason_of
from ..model.paged_model import read_model
from ..model.processor import limited_properties
from ..model.target import Rows, Window
from ..model.threads import PLACE
from .devices import CPU, NPU, failing, npu_properties, whole_number

MAX_PROMPT_LEN, MIN_RESPONSE_LEN = "MAX_PROMPT_LEN", "MIN_RESPONSE_LEN"  # as OpenVINO GenAI names them
DEFAULTS = {MAX_PROMPT_LEN: 1024, MIN_RESPONSE_LEN: 128}  # GenAI's
DECODING_ROWS = "NPUW_LLM_MAX_GENERATION_TOKEN_LEN"
NUM_DECODING_ROWS = 8
TILE_ROWS = 8  # OpenVINO rounds more than one row up to a multiple
SIZES = {"NPUW_LLM_MAX_PROMPT_LEN": MAX_PROMPT_LEN, "NPUW_LLM_MIN_RESPONSE_LEN": MIN_RESPONSE_LEN}  # OpenVINO's names
HINTS = ("NPUW_LLM_PREFILL_HINT", "NPUW_LLM_GENERATE_HINT")  # which GenAI has without their beginning
COMPILED = {"NPU_USE_NPUW": "YES", "NPUW_LLM": "YES", "NPUW_LLM_BATCH_DIM": 0, "NPUW_LLM_SEQ_LEN_DIM": 2}
CHECKED_TOKENS, SEED = 96, 0  # of the text that exactness is tried with
CACHE_BYTES = 2  # of a number in the cache, which is kept in f16


class NpuModel:
    """Compiles `folder`/openvino_model.xml for an NPU. Not safe for concurrent calls.

    A prompt is read whole, in one pass; a pass that decodes has `rows.most` rows, however many are wanted, and always
    takes equally long. That number is NPUW_LLM_MAX_GENERATION_TOKEN_LEN, rounded up as OpenVINO does. The cache holds
    one sequence. A pass begins after the tokens that are kept: what was computed from that position on is overwritten,
    so rejected tokens need nothing more (OpenVINO's pull request 31578), and position 0 begins another sequence.

    OpenVINO by itself would keep rejected tokens in two cases. It copies the attention mask over that of the previous
    pass, of which everything after the new mask's end stays; so the mask is extended that far with zeros. And a pass
    that follows only the first tokens of a prompt would find its last tokens still in the cache; so a pass that follows
    the whole prompt is run first.

    properties: OpenVINO's, and MAX_PROMPT_LEN and MIN_RESPONSE_LEN: the most tokens of a prompt, and the tokens of an
        answer for which there is room after it. With NPUW_DEVICES="CPU", OpenVINO's code for NPUs computes on the CPU.
    num_prompt_tokens, num_tokens: the most tokens of a prompt, and of a prompt and its answer together.

    Raises BrokenPair if the IR cannot be read, UnsupportedModel for weights other than symmetric int4,
    UnsupportedDevice if it cannot be compiled, and InvalidOption for a length or a number of rows that is not a whole
    number from 1 up, for lengths that leave no room for a pass after a prompt, and for a property that would have no
    effect or that this class sets.
    """

    def __init__(self, folder: Path, properties: Mapping[str, Any]) -> None:
        lengths = {name: whole_number(properties, name, default) for name, default in DEFAULTS.items()}
        num_rows = _rounded(whole_number(properties, DECODING_ROWS, NUM_DECODING_ROWS))
        if (room := sum(lengths.values())) < num_rows + 2:
            raise InvalidOption(
                f"{MAX_PROMPT_LEN} and {MIN_RESPONSE_LEN} are {room} tokens together, and a pass has {num_rows} rows: "
                f"give at least {num_rows + 2}."
            )
        _check(properties)
        model = read_model(ov.Core(), folder)
        require_symmetric_int4(model, folder)
        given = {name: value for name, value in properties.items() if name not in (*lengths, DECODING_ROWS)}
        if given.get("NPUW_DEVICES") == CPU:
            given = {**limited_properties(), **given}
        response = lengths[MIN_RESPONSE_LEN] + num_rows  # the cache is read before the rows of a pass are added to it
        sizes = dict(zip(SIZES, (lengths[MAX_PROMPT_LEN], response), strict=True))
        try:
            compiled = ov.Core().compile_model(model, NPU, {**COMPILED, **sizes, DECODING_ROWS: num_rows, **given})
            self._request = compiled.create_infer_request()
        except RuntimeError as error:
            raise UnsupportedDevice(
                f"OpenVINO could not compile {folder} for an NPU ({reason_of(error)}): update the device's driver, "
                "check the properties, or use another device."
            ) from error
        self._num_cached = 0
        self._num_marked = 0  # tokens that OpenVINO's copy of the mask may mark as cached
        self._num_prompt = 0  # tokens of a prompt that no pass has followed yet
        self.num_tokens = room
        self.num_prompt_tokens = lengths[MAX_PROMPT_LEN]
        self.rows = Rows(most=num_rows, whole_prompt=self.num_prompt_tokens)
        self.vocabulary_size: int = model.output("logits").partial_shape[-1].get_length()
        self.num_threads = 0
        self.precision = "f16"
        self.weight_bytes = (folder / "openvino_model.bin").stat().st_size
        self.num_taken_over = 0
        self.cache_bytes = CACHE_BYTES * self.num_tokens * sum(map(_numbers_for_a_token, model.get_variables()))

    def forward(self, windows: Sequence[Window]) -> list[NDArray[np.float32]]:
        """Run one window; logits float32 [num_rows, vocabulary], in memory that the next pass overwrites.

        A window of more rows than a pass has is run in several passes. Raises ValueError for several windows and for
        tokens that do not follow the cached ones or have no room, and InvalidOption for a prompt of one token where a
        pass has a single row.
        """
        if len(windows) != 1:
            raise ValueError(f"An NPU computes one sequence at a time, not {len(windows)}.")
        (window,) = windows
        start, end = window.start, window.start + len(window.tokens)
        if start > self._num_cached or end > self.num_tokens:
            raise ValueError(
                f"The tokens {start} to {end} cannot be read: {self._num_cached} are cached, and there is room for "
                f"{self.num_tokens}."
            )
        wanted: list[NDArray[np.float32]] = []
        for part in self._parts(window):
            logits = self._pass(window.tokens[part.start - start : part.stop - start], part.start)
            num_rows = min(len(part), part.stop - (end - window.num_rows))
            if num_rows > 0:
                rows = logits[len(logits) - num_rows :]
                wanted.append(rows if part.stop == end else rows.copy())
        return wanted if len(wanted) == 1 else [np.concatenate(wanted)]

    def _parts(self, window: Window) -> Iterator[range]:
        """The positions that each pass reads. The first pass of a sequence has logits for the last rows only."""
        start, end = window.start, window.start + len(window.tokens)
        if not start:
            few = window.num_rows <= self.rows.most
            start = min(end if few else end - window.num_rows + 1, self.num_prompt_tokens)
            yield range(start)
        for begin in range(start, end, self.rows.most):
            yield range(begin, min(begin + self.rows.most, end))

    def _pass(self, read: Sequence[int], start: int) -> NDArray[np.float32]:
        """The logits of the last rows of a pass over tokens from position `start` on."""
        tokens = np.array([read], np.int64)
        if start + len(read) == 1:  # a single row does not begin another sequence, but is appended to the previous one
            if self.rows.most == 1:
                raise InvalidOption(
                    f"A prompt of one token cannot be read with {DECODING_ROWS}=1: give a longer one, or load the pair "
                    f"with {DECODING_ROWS}={NUM_DECODING_ROWS}."
                )
            tokens = np.repeat(tokens, 2, axis=1)
        if 0 < start < self._num_prompt:
            self._infer(np.zeros((1, 1), np.int64), self._num_prompt)
        self._num_cached = start  # if the pass fails, the rest is lost
        logits = self._infer(tokens, start)
        self._num_cached = start + len(read)
        return logits[: len(logits) - (tokens.shape[1] - len(read))]

    def _infer(self, tokens: NDArray[np.int64], start: int) -> NDArray[np.float32]:
        """The logits of a pass over tokens int64 [1, rows] after what OpenVINO has cached before `start`."""
        num_rows = tokens.shape[1]
        self._num_marked = max(start, self._num_marked) if start else 0
        mask = np.ones((1, self._num_marked + num_rows), np.int64)
        mask[0, start : self._num_marked] = 0
        positions = np.arange(start, start + num_rows, dtype=np.int64)[np.newaxis]
        with failing(NPU):
            self._request.infer({"input_ids": tokens, "attention_mask": mask, "position_ids": positions})
        self._num_marked, self._num_prompt = start, 0 if start else num_rows
        logits: NDArray[np.float32] = self._request.get_tensor("logits").data[0]
        return logits

    def hidden_states(self) -> list[NDArray[np.float32]]:
        """An empty list: OpenVINO's code for NPUs outputs nothing but logits."""
        return []

    def is_exact(self) -> bool:
        """Whether logits are bitwise the same however the tokens after a prompt are split into passes, rejected ones
        among them. Overwrites the cache."""
        rng = random.Random(SEED)
        num_tokens = min(CHECKED_TOKENS, self.num_tokens - self.rows.most)
        tokens = [rng.randrange(self.vocabulary_size) for _ in range(num_tokens)]
        num_prompt = min(len(tokens) // 2, self.num_prompt_tokens)

        def read(num_rows: int) -> Iterator[NDArray[np.float32]]:
            """The logits of each token after the prompt, from passes of `num_rows` rows, some of which are rejected."""
            self.forward([Window(tokens[:num_prompt], 0, [0])])
            start = num_prompt
            while start < len(tokens):
                num_kept = min(rng.randint(1, num_rows), len(tokens) - start)
                rejected = [rng.randrange(self.vocabulary_size) for _ in range(num_rows - num_kept)]
                fed = [*tokens[start : start + num_kept], *rejected]
                yield from self.forward([Window(fed, start, [0], num_rows)])[0][:num_kept].copy()
                start += num_kept

        alone = list(read(1))
        return all(
            np.array_equal(one, other)
            for num_rows in range(2, self.rows.most + 1)
            for one, other in zip(alone, read(num_rows), strict=True)
        )

    def occupy(self, blocks: Sequence[int]) -> None:
        """Nothing needs to be filled: `blind_pass` itself reads the tokens that have to be cached."""

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object:
        """A pass of `rows` rows, in order to time it, after `context` tokens or as many as there is room for: it takes
        equally long after any number."""
        context = min(context, self.num_tokens - rows)
        if self._num_cached < context:
            missing = [0] * (context - self._num_cached)
            self.forward([Window(missing, self._num_cached, blocks)])
        return self.forward([Window([0] * rows, context, blocks, min(rows, self.rows.most))])


def _check(properties: Mapping[str, Any]) -> None:
    """Raises InvalidOption for properties that `NpuModel` sets, and for those that the devices do not know on which
    OpenVINO's code for NPUs computes, as it drops them without a word."""
    for name, ours in SIZES.items():
        if name in properties:
            raise InvalidOption(f"{name}={properties[name]!r} is not possible: give {ours} in its place.")
    for name, needed in COMPILED.items():
        if (value := properties.get(name, needed)) != needed:
            raise InvalidOption(f"{name}={value!r} is not possible: it has to be {needed!r}, so leave it out.")
    others = properties.keys() - npu_properties(properties) - {*DEFAULTS, *PLACE}  # PLACE is for what drafts on the CPU
    if not others:
        return
    known = {*DEFAULTS, *HINTS, DECODING_ROWS, *_supported(properties)}
    for name in sorted(others - known):
        closest = "".join(f"give {each}, or " for each in get_close_matches(name.upper(), sorted(known), 1))
        raise InvalidOption(f"{name}={properties[name]!r} has no effect on an NPU: {closest}leave it out.")


def _supported(properties: Mapping[str, Any]) -> Iterator[str]:
    """The properties that the devices know on which OpenVINO's code for NPUs computes."""
    core = ov.Core()
    for device in dict.fromkeys((NPU, *str(properties.get("NPUW_DEVICES", NPU)).split(","))):
        with suppress(RuntimeError):  # there is no such device, which is reported when the model is compiled
            yield from core.get_property(device, "SUPPORTED_PROPERTIES")


def _rounded(num_rows: int) -> int:
    return num_rows if num_rows == 1 else -(-num_rows // TILE_ROWS) * TILE_ROWS


def require_symmetric_int4(model: ov.Model, folder: Path) -> None:
    """Raises UnsupportedModel unless the weights are what OpenVINO's documentation asks for on an NPU; embeddings and
    the projection on the vocabulary can be int8."""
    constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    sizes: Counter[str] = Counter()
    for node in constants:
        sizes[node.get_element_type().get_type_name()] += int(np.prod(node.get_output_shape(0)))
    if "i4" not in sizes or "u4" in sizes:
        found = "asymmetric int4" if "u4" in sizes else sizes.most_common(1)[0][0]
        raise UnsupportedModel(
            f"{folder} has weights of type {found}, and an NPU takes symmetric int4: export the pair with "
            "--for npu, or, for its draft model, with --draft-weights int4."
        )


def _numbers_for_a_token(variable: Any) -> int:
    """How many numbers a token's keys or values have, in a variable [batch, heads, tokens, size]."""
    heads, size = (variable.info.data_shape[i].get_length() for i in (1, 3))
    return int(heads * size)
