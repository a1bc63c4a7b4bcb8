"""Loaded drafting: the draft model and the head of a pair on their devices, with their caches."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..devices.devices import CPU, NPU
from ..devices.gpu_model import GpuPagedModel
from ..devices.npu_model import DECODING_ROWS, MAX_PROMPT_LEN, MIN_RESPONSE_LEN, NpuModel
from ..engine.block_pool import BlockPool
from ..model.heads.head_kind import open_head
from ..model.paged_model import PagedModel
from ..model.paged_request import BLOCK_SIZE
from ..model.pair import Pair, context_length
from ..model.processor import GROUP_SIZE, PRECISION
from ..model.threads import PLACE
from ..model.vocabulary import check_same_vocabulary, have_same_constants
from ..text.tokenizer import Tokenizer
from .drafters.draft_model import REACH, DraftModel
from .drafters.head import Head
from .drafting_model import DraftingModel

# For a draft model on an NPU: room for the part of a text that it begins with, and for three times as many tokens
# before it has to begin again.
NPU_DRAFT = {MAX_PROMPT_LEN: REACH, MIN_RESPONSE_LEN: 3 * REACH}

log = logging.getLogger(__name__)


def loaded_drafting(
    pair: Pair,
    tokenizer: Tokenizer,
    device: str,
    draft_device: str,
    num_blocks: int,
    vocabulary_size: int,
    on_cpu: Mapping[str, Any],
    on_npu: Mapping[str, Any],
) -> list[DraftingModel]:
    """The draft model and the head, as far as the pair has them and they can be used on these devices. Other arguments
    and errors are those of `LLMPipeline`.

    num_blocks: size of each cache.
    vocabulary_size: the target's.
    on_cpu, on_npu: OpenVINO properties for models on the CPU and on an NPU.
    """
    found = []
    if pair.draft is not None:
        properties = on_npu if draft_device == NPU else on_cpu
        found.append(_draft_model(pair, pair.draft, tokenizer, num_blocks, draft_device, properties))
    if pair.head is not None and device == CPU:
        found.append(_head(pair, pair.head, num_blocks, vocabulary_size, on_cpu))
    elif pair.head is not None:
        log.warning("The pair's head drafts for a target on the CPU only, so it is not used on %s.", device)
    return found


def _draft_model(
    pair: Pair, folder: Path, tokenizer: Tokenizer, num_blocks: int, device: str, properties: Mapping[str, Any]
) -> DraftingModel:
    """The draft model on its device. On an NPU its cache is a single block, which one request has at a time."""
    if not have_same_constants(pair.target, folder):
        check_same_vocabulary(tokenizer.vocabulary, Tokenizer(folder).vocabulary, f"{pair.target} and {folder}")
    max_context, pool = context_length(folder), BlockPool(num_blocks, BLOCK_SIZE)
    model: PagedModel | NpuModel | GpuPagedModel
    if device == CPU:
        model = PagedModel(folder, num_blocks, properties, exact=False)
    elif device == NPU:
        given = {name: value for name, value in properties.items() if name != DECODING_ROWS}  # the target's
        model = NpuModel(folder, {**given, **NPU_DRAFT})
        pool, max_context = BlockPool(1, model.num_tokens), min(max_context, model.num_tokens)
    else:
        model = GpuPagedModel(folder, num_blocks, device)
    return DraftingModel(DraftModel(model, pool, max_context), model, pool)


def _head(
    pair: Pair, folder: Path, num_blocks: int, vocabulary_size: int, properties: Mapping[str, Any]
) -> DraftingModel:
    model, pool = open_head(folder, pair.target, num_blocks, properties), BlockPool(num_blocks, BLOCK_SIZE)
    return DraftingModel(Head(model, pool, vocabulary_size), model, pool)


def draft_properties(precision: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """A draft model changes no text, so its activations may be coarse. It computes in the precision in which the target
    is fastest, on the processors that the target's `properties` leave to both."""
    return {GROUP_SIZE: 128, PRECISION: precision} | {name: properties[name] for name in PLACE if name in properties}
