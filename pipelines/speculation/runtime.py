"""Runtime: a pair on the CPU, with the caches, drafters and measurements that speculative decoding needs."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import AUTO
from ..engine.block_pool import BlockPool
from ..engine.engine import Engine
from ..model.paged_model import BLOCK_SIZE, PagedModel, Window
from ..model.pair import Pair, context_length
from ..model.processor import GROUP_SIZE, PRECISION
from ..model.profile import cache_folder, measured_cost, profile_path
from ..model.timing import Run
from ..model.tuning import load_target
from ..model.vocabulary import check_same_vocabulary
from ..text.tokenizer import Tokenizer
from . import draft_model_policy
from .acceptance import AcceptanceModel
from .cost import CostModel
from .drafter_set import DrafterSet
from .drafters import draft_model, grammar, retrieval, suffix
from .drafters.base import Drafter, ModeDrafters
from .drafters.draft_model import DraftModel
from .drafters.prompt_lookup import PromptLookup
from .drafters.retrieval import Retrieval
from .drafters.suffix import Suffix
from .measuring import CONTEXTS, ROWS
from .planner import LONGEST, Planner
from .reference import Reference

CACHE_TOKENS = 16384  # by default
# Properties of the target that the draft model shares.
PLACE = ("INFERENCE_NUM_THREADS", "SCHEDULING_CORE_TYPE", "ENABLE_HYPER_THREADING", "ENABLE_CPU_PINNING")
MEASURED_TOKENS = CONTEXTS[-1] + ROWS[-1]
MEASURE_S = 2.0  # spent on measuring passes at first; more is learnt while answers are written
PREPARED_S = 2.0  # spent on compiling kernels that could also be compiled on the way

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of both models' weights and of the key-value caches, which hold `cache_tokens` tokens."""

    weights: int
    cache: int
    cache_tokens: int


class Runtime:
    """Loads both models; `engine` decodes with them in each of `modes`.

    compilation: how the target is compiled on this machine.
    exact: whether the same seed gives the same text in every mode.
    cost: the cost of passes on this machine; None before `measure`, or if it cannot be measured.

    Raises what `LLMPipeline` raises.
    """

    def __init__(
        self,
        pair: Pair,
        tokenizer: Tokenizer,
        cache_tokens: int | None,
        exact: bool | None,
        reference: Path | None,
        properties: Mapping[str, Any],
    ) -> None:
        properties = {**pair.properties, **properties}
        num_blocks = -(-(cache_tokens or CACHE_TOKENS) // BLOCK_SIZE)
        self.cache_tokens = num_blocks * BLOCK_SIZE
        self._pool = BlockPool(num_blocks, BLOCK_SIZE)
        self._draft_pool = BlockPool(num_blocks, BLOCK_SIZE)
        self._room = min(pair.max_context, self.cache_tokens)  # tokens that can be tried
        self._compiled = profile_path(pair, "CPU", properties, exact).with_suffix(".compilation.json")
        self._target, self.compilation = load_target(
            pair.target, num_blocks, properties, exact, pair.max_context, self._compiled
        )
        if exact and not self.exact:
            log.warning(
                "On this device, with these properties, logits depend on how tokens are cut into passes: the same seed "
                "may give another text in another mode."
            )
        self._draft: PagedModel | None = None
        kinds = (grammar, suffix, retrieval, draft_model, draft_model_policy)
        acceptance = AcceptanceModel({kind: prior for each in kinds for kind, prior in each.PRIORS.items()})
        copying: tuple[Drafter, ...] = (Suffix(acceptance),)
        if reference is not None:
            copying = (*copying, Retrieval(_open_reference(reference, pair, tokenizer)))
        modes = {"off": ModeDrafters(), "lookup": ModeDrafters((PromptLookup(),)), "suffix": ModeDrafters(copying)}
        if pair.draft is not None:
            check_same_vocabulary(
                tokenizer.vocabulary, Tokenizer(pair.draft).vocabulary, f"{pair.target} and {pair.draft}"
            )
            self._draft = PagedModel(pair.draft, num_blocks, _draft_properties(self.precision, properties), exact=False)
            writing = DraftModel(self._draft, self._draft_pool, context_length(pair.draft))
            modes |= {"draft": ModeDrafters(model=writing), "chained": ModeDrafters(copying, writing)}
        modes[AUTO] = modes.get("chained", modes["suffix"])
        self.modes = tuple(modes)
        self._planner = Planner(DrafterSet(modes, acceptance, self._target.vocabulary_size), acceptance)
        self.engine = Engine(self._target, self._pool, self._planner)
        self._profile = profile_path(pair, "CPU", {**properties, PRECISION: self.precision}, self.exact)
        self._is_measured = False

    @property
    def exact(self) -> bool:
        return self.compilation.exact

    @property
    def cost(self) -> CostModel | None:
        return self._planner.cost

    @property
    def num_threads(self) -> int:
        return self._target.num_threads

    @property
    def precision(self) -> str:
        """What the target computes in, such as "f32" or "bf16"."""
        return self._target.precision

    @property
    def memory(self) -> Memory:
        """What both models take."""
        models = [model for model in (self._target, self._draft) if model is not None]
        return Memory(
            weights=sum(model.weight_bytes for model in models),
            cache=sum(model.cache_bytes for model in models),
            cache_tokens=self.cache_tokens,
        )

    def prepare(self) -> None:
        """Run a pass of each size that a draft can lead to, the smaller first, for PREPARED_S seconds at most. The
        first of its size compiles kernels, which takes a small model a good part of a pass."""
        until = time.perf_counter() + PREPARED_S
        room = min(LONGEST + 1, self._room, self._target.rows.most)
        with self.engine.borrowed(room, self._pool, self._draft_pool) as (blocks, draft_blocks):
            passes = [_passes(self._target, blocks)]
            if self._draft is not None:
                passes.append(_passes(self._draft, draft_blocks))
            for rows in range(1, room + 1):
                for run in passes:
                    if time.perf_counter() > until:
                        return
                    run(rows, 0)

    def measure(self, again: bool = False) -> None:
        """Learn what passes cost here, which the planner goes by, within MEASURE_S seconds and a pass; `again`, though
        it is known, and for as long as it takes."""
        if self._is_measured and not again:
            return
        self._is_measured = True
        if again:
            for path in (self._profile, self._compiled):  # the latter is tried when the pair is loaded again
                path.unlink(missing_ok=True)
        room = min(MEASURED_TOKENS, self._room)

        def measured() -> CostModel:
            with self.engine.borrowed(room, self._pool, self._draft_pool) as (blocks, draft_blocks):
                self._target.occupy(blocks)
                draft = None
                if self._draft is not None:
                    self._draft.occupy(draft_blocks)
                    draft = _passes(self._draft, draft_blocks)
                return CostModel.measure(
                    _passes(self._target, blocks),
                    draft,
                    room,
                    self._target.rows.fewest,
                    self._target.rows.most,
                    token_share=self._target.cache_bytes / self.cache_tokens / self._target.weight_bytes,
                    budget_s=math.inf if again else MEASURE_S,
                )

        self._planner.cost = measured_cost(self._profile, measured)

    def forget_prompts(self) -> None:
        """Drop what the cache keeps of earlier requests, as if the pair had just been loaded.

        Serves the running requests to their ends. What passes cost and what drafts were worth stays known.
        """
        with self.engine.borrowed(self.cache_tokens, self._pool, self._draft_pool):
            pass  # whoever holds every block has taken those that were kept


def _draft_properties(precision: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """A draft model changes no text, so its activations may be coarse. What the target runs fastest in, it does; and it
    runs on the processors that the target's `properties` leave to both."""
    return {GROUP_SIZE: 128, PRECISION: precision} | {name: properties[name] for name in PLACE if name in properties}


def _open_reference(folder: Path, pair: Pair, tokenizer: Tokenizer) -> Reference:
    vocabulary = hashlib.sha256((pair.target / "openvino_tokenizer.bin").read_bytes()).hexdigest()
    return Reference.of(folder, cache_folder(), vocabulary, lambda text: tokenizer.encode(text, False))


def _passes(model: PagedModel, blocks: list[int]) -> Run:
    """Passes over whatever the blocks hold."""
    return lambda rows, context: model.forward([Window([0] * rows, context, blocks, num_rows=rows)])
