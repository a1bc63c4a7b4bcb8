"""NpuModel: a model on an NPU, compiled for fixed shapes and for one sequence at a time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ..errors import InvalidOption, UnsupportedDevice, UnsupportedModel, reason_of
from ..model.paged_model import read_model
from ..model.target import Rows, Window
from .devices import NPU, failing, whole_number

MAX_PROMPT_LEN, MIN_RESPONSE_LEN = "MAX_PROMPT_LEN", "MIN_RESPONSE_LEN"  # as OpenVINO GenAI names them
DEFAULTS = {MAX_PROMPT_LEN: 1024, MIN_RESPONSE_LEN: 128}  # GenAI's
DECODING_ROWS = "NPUW_LLM_MAX_GENERATION_TOKEN_LEN"
NUM_DECODING_ROWS = 8
TILE_ROWS = 8  # OpenVINO rounds more than one row up to a multiple
COMPILED = {"NPU_USE_NPUW": "YES", "NPUW_LLM": "YES", "NPUW_LLM_BATCH_DIM": 0, "NPUW_LLM_SEQ_LEN_DIM": 2}
CHECKED_TOKENS, SEED = 96, 0  # of the text that exactness is tried with
CACHE_BYTES = 2  # of a number in the cache, which is kept in f16


class NpuModel:
    """Compiles `folder`/openvino_model.xml for an NPU. Not safe for concurrent calls.

    A prompt is read whole, in one pass; a pass that decodes has `rows.most` rows, however many are wanted, and takes as
    long for each number of them. That is NPUW_LLM_MAX_GENERATION_TOKEN_LEN, rounded up as OpenVINO does. The cache
    holds one sequence. A pass begins behind the tokens that are kept: what the last pass computed from that position on
    is overwritten, so rejected tokens need no more (OpenVINO's pull request 31578), and position 0 begins another
    sequence.

    properties: those of OpenVINO, and MAX_PROMPT_LEN and MIN_RESPONSE_LEN, the most tokens of a prompt and those of an
        answer that have room behind it. With NPUW_DEVICES="CPU", OpenVINO's code for NPUs computes on the CPU.
    num_prompt_tokens, num_tokens: the most tokens of a prompt, and of a prompt and its answer together.

    Raises BrokenPair if the IR cannot be read, UnsupportedModel for weights other than symmetric int4,
    UnsupportedDevice if it cannot be compiled, and InvalidOption for a length or a number of rows that is none.
    """

    def __init__(self, folder: Path, properties: Mapping[str, Any]) -> None:
        lengths = {name: whole_number(properties, name, default) for name, default in DEFAULTS.items()}
        num_rows = _rounded(whole_number(properties, DECODING_ROWS, NUM_DECODING_ROWS))
        model = read_model(ov.Core(), folder)
        require_symmetric_int4(model, folder)
        given = {name: value for name, value in properties.items() if name not in (*lengths, DECODING_ROWS)}
        response = lengths[MIN_RESPONSE_LEN] + num_rows  # the cache is read before the rows of a pass are added to it
        sizes = {"NPUW_LLM_MAX_PROMPT_LEN": lengths[MAX_PROMPT_LEN], "NPUW_LLM_MIN_RESPONSE_LEN": response}
        try:
            compiled = ov.Core().compile_model(model, NPU, {**COMPILED, **sizes, DECODING_ROWS: num_rows, **given})
            self._request = compiled.create_infer_request()
        except RuntimeError as error:
            raise UnsupportedDevice(
                f"OpenVINO could not compile {folder} for an NPU ({reason_of(error)}): update the device's driver, "
                "check the properties, or use another device."
            ) from error
        self._num_cached = self._last_start = 0
        self.num_tokens = sum(lengths.values())
        self.num_prompt_tokens = lengths[MAX_PROMPT_LEN]
        self.rows = Rows(most=num_rows, whole_prompt=self.num_prompt_tokens)
        self.vocabulary_size: int = model.output("logits").partial_shape[-1].get_length()
        self.num_threads = 0
        self.precision = "f16"
        self.weight_bytes = (folder / "openvino_model.bin").stat().st_size
        self.cache_bytes = CACHE_BYTES * self.num_tokens * sum(map(_numbers_for_a_token, model.get_variables()))

    def forward(self, windows: Sequence[Window]) -> list[NDArray[np.float32]]:
        """Run one window; logits float32 [num_rows, vocabulary], in memory that the next pass overwrites.

        Raises ValueError for several windows, for tokens that are not behind the cached ones, and for too many rows,
        and InvalidOption for a prompt of one token where a pass has a single row.
        """
        if len(windows) != 1:
            raise ValueError(f"An NPU computes one sequence at a time, not {len(windows)}.")
        (window,) = windows
        start, end = window.start, window.start + len(window.tokens)
        most = self.rows.most if start else self.num_prompt_tokens
        is_next = not start or self._last_start <= start <= self._num_cached
        if not is_next or end > self.num_tokens or len(window.tokens) > most:
            raise ValueError(
                f"A pass over the tokens {start} to {end} is not possible. It must begin between {self._last_start}, "
                f"where the last pass began, and {self._num_cached}, the number of cached tokens, end at "
                f"{self.num_tokens} or before, and have at most {most} rows."
            )
        if window.num_rows > self.rows.most:
            raise ValueError(f"A pass has logits for {self.rows.most} rows at most, not {window.num_rows}.")
        if end == 1 and self.rows.most == 1:
            raise InvalidOption(
                f"A prompt of one token cannot be read with {DECODING_ROWS}=1: give a longer one, or load the pair "
                f"with {DECODING_ROWS}={NUM_DECODING_ROWS}."
            )
        self._num_cached = self._last_start = start  # if the pass fails, the rest is lost
        tokens = np.array([window.tokens], np.int64)
        if end == 1:  # one row alone does not begin another sequence, but is put behind the one before
            tokens = np.repeat(tokens, 2, axis=1)
        positions = np.arange(start, start + tokens.shape[1], dtype=np.int64)[np.newaxis]
        mask = np.ones((1, start + tokens.shape[1]), np.int64)
        with failing(NPU):
            self._request.infer({"input_ids": tokens, "attention_mask": mask, "position_ids": positions})
        self._num_cached = end
        logits = self._request.get_tensor("logits").data[0]
        last = len(logits) - (tokens.shape[1] - len(window.tokens))
        return [logits[last - window.num_rows : last]]

    def hidden_states(self) -> list[NDArray[np.float32]]:
        """None: OpenVINO's code for NPUs gives logits alone."""
        return []

    def is_exact(self) -> bool:
        """Whether logits are bitwise the same however the tokens behind a prompt are split into passes, rejected ones
        among them. Overwrites the cache."""
        rng = random.Random(SEED)
        num_tokens = min(CHECKED_TOKENS, self.num_tokens - self.rows.most)
        tokens = [rng.randrange(self.vocabulary_size) for _ in range(num_tokens)]
        num_prompt = min(len(tokens) // 2, self.num_prompt_tokens)

        def read(num_rows: int) -> Iterator[NDArray[np.float32]]:
            """The logits of each token behind the prompt, from passes of so many rows of which some are rejected."""
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
        """Nothing needs to be filled: `blind_pass` reads as many tokens as it wants cached."""

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object:
        if context < self._last_start:
            self._num_cached = 0
        while self._num_cached < context:
            most = self.rows.most if self._num_cached else self.num_prompt_tokens
            tokens = [0] * min(most, context - self._num_cached)
            self.forward([Window(tokens, self._num_cached, blocks)])
        return self.forward([Window([0] * rows, context, blocks, rows)])


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
            "--for npu."
        )


def _numbers_for_a_token(variable: Any) -> int:
    """Of keys or values [batch, heads, tokens, size]."""
    heads, size = (variable.info.data_shape[i].get_length() for i in (1, 3))
    return int(heads * size)
