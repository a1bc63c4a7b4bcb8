"""Runtime: a pair on its devices, with the caches, drafters and measurements that speculative decoding needs."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import AUTO
from ..devices.devices import CPU, NPU, npu_properties
from ..devices.npu_model import DECODING_ROWS
from ..engine.block_pool import BlockPool
from ..engine.engine import Engine
from ..errors import InvalidOption
from ..model.paged_request import BLOCK_SIZE
from ..model.pair import Pair
from ..model.processor import PRECISION
from ..model.profile import cache_folder, discard, profile_path
from ..model.split_model import ShortModel, SplitModel
from ..model.target import Window
from ..model.threads import with_threads
from ..model.timing import Run
from ..text.tokenizer import Tokenizer
from . import draft_model_policy
from .acceptance import AcceptanceModel
from .cost import CostModel
from .cost_file import measured_cost
from .draft import LONGEST
from .drafter_set import DrafterSet
from .drafters import draft_model, grammar, head, recycling, retrieval, self_speculative, suffix
from .drafters.base import Drafter, ModeDrafters, ModelDrafter
from .drafters.draft_model import DraftModel
from .drafters.head import Head
from .drafters.prompt_lookup import PromptLookup
from .drafters.recycling import TokenRecycling
from .drafters.retrieval import Retrieval
from .drafters.self_speculative import SelfSpeculative
from .drafters.suffix import Suffix
from .drafting_model import DraftingFailed, DraftingModel
from .expected_acceptance import HOPED
from .loaded_drafting import draft_properties, loaded_drafting
from .loaded_target import LoadedTarget
from .measuring import CONTEXTS, ROWS, measure, measure_at_fixed_size
from .planner import Planner
from .reference import Reference
from .speedup import CONTEXT, speedup_of

MEASURED_TOKENS = CONTEXTS[-1] + ROWS[-1]
MODE_OF = {  # the mode in which a model drafts alone
    DraftModel.name: "draft", Head.name: "head", self_speculative.SKIPPING: "skip", self_speculative.EXIT: "exit",
}  # fmt: skip
# Least size of the target's weights for token recycling in "chained" and "auto": passes of smaller targets are so short
# that the Python time it takes is more than it saves.
RECYCLING_BYTES = 64 << 20
MEASURE_S = 2.0  # spent on measuring passes at first; more is learnt while answers are written
PREPARED_S = 2.0  # spent on compiling kernels that could also be compiled on the way

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of all models' weights and of the key-value caches, which hold `cache_tokens` tokens."""

    weights: int
    cache: int
    cache_tokens: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What the target computes of a text.

    logits: after each of the last tokens, float32 [rows, vocabulary].
    states: its hidden states at all tokens, float32 [tokens, taps * width], without rows where no head needs them.
    blocks: the blocks of its cache that hold the text.
    """

    logits: NDArray[np.float32]
    states: NDArray[np.float32]
    blocks: Sequence[int]


class Runtime:
    """Loads the models of a pair; `engine` decodes with them in each of `modes`. Arguments are those of `LLMPipeline`.

    compilation: how the target is compiled on this machine.
    reference: the texts that drafts are copied from, if any were given.
    exact: whether the same seed gives the same text in every mode.
    cost: the cost of passes on this machine; None before `measure`, or if it cannot be measured.

    Raises what `LLMPipeline` raises.
    """

    def __init__(
        self,
        pair: Pair,
        tokenizer: Tokenizer,
        device: str,
        draft_device: str,
        cache_tokens: int | None,
        exact: bool | None,
        reference: Path | None,
        properties: Mapping[str, Any],
    ) -> None:
        if draft_device != CPU and pair.draft is None:
            raise InvalidOption(
                f"draft_device={draft_device!r} needs a draft model, and {pair.path} has none: leave it out, or export "
                "the pair with --draft."
            )
        on_npu = npu_properties(properties) if NPU in (device, draft_device) else {}
        given = properties
        if device != NPU:
            if DECODING_ROWS in on_npu:
                raise InvalidOption(f"{DECODING_ROWS} is for targets on an NPU; this one is on {device}: leave it out.")
            given = {name: value for name, value in properties.items() if name not in on_npu}
        if device == CPU:
            given = {**pair.properties, **given}
        loaded = LoadedTarget.on(device, pair, cache_tokens, exact, given)
        self._target, self.compilation, self._compiled = loaded.target, loaded.compilation, loaded.path
        given = {**with_threads(self.compilation.num_threads), **given}
        self.cache_tokens = loaded.room.tokens
        self._pool = loaded.pool
        self._room = min(pair.max_context, self.cache_tokens)  # tokens that can be tried
        if exact and not self.exact:
            log.warning(
                "On this device, with these properties, logits depend on how tokens are cut into passes: the same seed "
                "may give another text in another mode."
            )
        self._draft_device = draft_device
        kinds = (grammar, suffix, retrieval, recycling, draft_model, head, self_speculative, draft_model_policy)
        texts = {*suffix.PRIORS, *retrieval.PRIORS, *recycling.PRIORS, PromptLookup.name}
        acceptance = AcceptanceModel({kind: prior for each in kinds for kind, prior in each.PRIORS.items()}, texts)
        self.reference = None if reference is None else _open_reference(reference, pair, tokenizer)
        copying: tuple[Drafter, ...] = (Suffix(acceptance),)
        if self.reference is not None:
            copying = (*copying, Retrieval(self.reference))
        self._recycler = TokenRecycling(self._target.vocabulary_size)
        from_text = (*copying, self._recycler) if self._target.weight_bytes >= RECYCLING_BYTES else copying
        modes = {
            "off": ModeDrafters(),
            "lookup": ModeDrafters((PromptLookup(),)),
            "suffix": ModeDrafters(copying),
            "recycling": ModeDrafters((*copying, self._recycler)),
        }
        num_blocks = -(-self.cache_tokens // BLOCK_SIZE)
        on_cpu = draft_properties(self.precision if device == CPU else "f32", given)
        self._drafting = loaded_drafting(
            pair, tokenizer, device, draft_device, num_blocks, self._target.vocabulary_size, on_cpu, on_npu
        )
        if pair.skipping is not None and isinstance(self._target, SplitModel):
            name = self_speculative.EXIT if pair.skipping.is_exit else self_speculative.SKIPPING
            drafter = SelfSpeculative(name, self._target, self._pool)
            self._drafting.append(DraftingModel(drafter, ShortModel(self._target), self._pool))
        elif pair.skipping is not None:
            log.warning("The target drafts by itself on the CPU only, so it does not on %s.", device)
        drafters = tuple(each.drafter for each in self._drafting)
        modes |= {MODE_OF[drafter.name]: ModeDrafters(models=(drafter,)) for drafter in drafters}
        if drafters:
            modes["chained"] = ModeDrafters(from_text, drafters)
        modes[AUTO] = modes.get("chained", ModeDrafters(from_text))
        self.modes = tuple(modes)
        self._drafters = DrafterSet(modes, acceptance, self._target.vocabulary_size)
        self._planner = Planner(self._drafters, acceptance)
        self.engine = Engine(self._target, self._pool, self._planner, loaded.room)
        self._measured_tokens = min(MEASURED_TOKENS, self._room)
        compiled = {
            **given, **on_npu, PRECISION: self.precision, "longest": self.compilation.longest,
            "room": self._measured_tokens,
        }  # fmt: skip
        self._profile = profile_path(pair, device, compiled, self.exact, draft_device)
        self._is_measured = self._has_warned = False
        self._measuring = threading.Lock()

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
        """What all models take."""
        models = (self._target, *(each.model for each in self._drafting))
        return Memory(
            weights=sum(model.weight_bytes for model in models),
            cache=sum(model.cache_bytes for model in models),
            cache_tokens=self.cache_tokens,
        )

    def prepare(self) -> None:
        """Run a pass of each size that a draft can lead to, the smaller first, for PREPARED_S seconds at most. The
        first pass of a size compiles kernels, which with a small model takes a good part of a pass."""
        until = time.perf_counter() + PREPARED_S
        room = min(LONGEST + 1, self._room, self._target.rows.most)
        with self._borrowed(room) as blocks:
            passes: list[Callable[[int, int], object]] = [*self._passes(blocks).values()]
            if self._target.rows.whole_prompt is None:
                passes.insert(0, partial(self._target.blind_pass, blocks=blocks[self._pool]))
            for rows in range(1, room + 1):
                for run in [*passes]:
                    if time.perf_counter() > until:
                        return
                    try:
                        run(rows, 0)
                    except DraftingFailed as failure:
                        self._give_up(failure)
                        passes.remove(run)

    def measure(self, again: bool = False) -> None:
        """Learn what passes cost on this machine, which the planner needs, within MEASURE_S seconds and a pass.

        again: measure even what is known, for as long as it takes; and when the pair is next loaded, find out again how
            to compile it.
        """
        if self._is_measured and not again:
            return
        with self._measuring:
            if self._is_measured and not again:  # by a thread that this one has waited for
                return
            if again:
                discard(self._compiled)
            self._learn_costs(math.inf if again else MEASURE_S, anew=again)

    def measure_fully(self) -> None:
        """Learn what passes cost on this machine, and measure what could only be estimated so far, for as long as it
        takes."""
        self.measure()
        if self.cost is not None and self.cost.is_guessed:
            self._learn_costs(math.inf, anew=True)

    @contextmanager
    def _borrowed(self, num_tokens: int) -> Iterator[dict[BlockPool, list[int]]]:
        """Blocks for `num_tokens` tokens of each cache: the target's, and those of the models that draft."""
        pools = dict.fromkeys((self._pool, *(each.pool for each in self._drafting)))
        with self.engine.borrowed(num_tokens, *pools) as tables:
            yield dict(zip(pools, tables, strict=True))

    def _passes(self, blocks: Mapping[BlockPool, Sequence[int]]) -> dict[str, Run]:
        """For each model that drafts, by the drafter's name, passes in these blocks of its cache."""
        return {each.name: each.passes(blocks[each.pool]) for each in self._drafting}

    def _learn_costs(self, budget_s: float, anew: bool) -> None:
        if anew:
            discard(self._profile)
        room = self._measured_tokens

        def measured() -> CostModel:
            with self._borrowed(room) as blocks:
                rows = self._target.rows
                self._target.occupy(blocks[self._pool])
                for each in self._drafting:
                    each.occupy(blocks[each.pool])
                drafts = self._passes(blocks)
                target = partial(self._target.blind_pass, blocks=blocks[self._pool])
                token_share = self._target.cache_bytes / self.cache_tokens / self._target.weight_bytes
                if rows.whole_prompt is not None or rows.fewest == rows.most:
                    return measure_at_fixed_size(target, drafts, room, rows.most, token_share, budget_s)
                return measure(target, drafts, room, rows.fewest, rows.most, token_share, budget_s)

        profile = self._profile
        try:
            cost = measured_cost(profile, measured, anew)
        except DraftingFailed as failure:
            self._give_up(failure)
        if profile != self._profile:  # a model was given up, here or by another thread
            discard(profile)
            self._learn_costs(budget_s, anew)
            return
        self._planner.cost = cost
        self._is_measured = True
        if self._planner.cost is not None and self._draft_device != CPU:
            self._warn_if_it_loses(self._planner.cost)

    def _give_up(self, failure: DraftingFailed) -> None:
        """Draft without a model whose device failed until the pair is loaded again. What is measured without it is kept
        in another file. Several threads may meet the same failure."""
        with self.engine.lock:
            if failure.failed not in self._drafting:
                return
            name = failure.failed.name.replace("_", " ")
            log.warning("Nothing is drafted with the %s until the pair is loaded again: %s", name, failure)
            self._drafters.give_up(failure.failed.drafter)
            self._drafting.remove(failure.failed)
            self._profile = self._profile.with_suffix(f".without-{failure.failed.name}.json")

    def _warn_if_it_loses(self, cost: CostModel) -> None:
        """Warn if a draft model on another device does not pay at an acceptance of HOPED. On the CPU that is common."""
        draft = cost.drafts.get(DraftModel.name)
        if draft is None:
            return
        if speedup_of(cost, HOPED, draft).ratio <= 1 and not self._has_warned:
            self._has_warned = True
            log.warning(
                "The draft model takes %.1f ms a token on %s, and a pass of the target %.1f: even with %d%% of its "
                "tokens accepted it would be slower than plain decoding, so it is rarely used. Load it on the CPU.",
                draft.token_ms, self._draft_device, cost.pass_ms([(1, CONTEXT)]), 100 * HOPED,
            )  # fmt: skip

    @property
    def vocabulary_size(self) -> int:
        """The size of the target's vocabulary."""
        return self._target.vocabulary_size

    @property
    def can_read(self) -> bool:
        """Whether a pass can give logits for all rows of a prompt, which it cannot on an NPU."""
        return self._target.rows.whole_prompt is None

    @contextmanager
    def reading(self, tokens: Sequence[int], num_rows: int) -> Iterator[Reading]:
        """Run the target over a text, outside of requests, with logits after each of the last `num_rows` tokens.

        No request is served before the context is left. Raises ValueError if the text does not fit into the cache, or
        if `can_read` is false.
        """
        rows, length = self._target.rows, len(tokens)
        if length > self._room or not self.can_read:
            raise ValueError(f"{length} tokens cannot be read here.")
        logits: list[NDArray[np.float32]] = []
        states: list[NDArray[np.float32]] = []
        with self.engine.borrowed(length, self._pool) as (blocks,):
            for start in range(0, length, rows.most):
                chunk = tokens[start : start + rows.most]
                wanted = max(0, start + len(chunk) - max(start, length - num_rows))
                window = Window(chunk, start, blocks, max(1, wanted))
                (found,) = self._target.forward([window])
                logits.append(found[len(found) - wanted :].copy())
                states += [of_window.copy() for of_window in self._target.hidden_states()]
            of_all = np.concatenate(states) if states else np.empty((0, 0), np.float32)
            yield Reading(np.concatenate(logits), of_all, blocks)

    @property
    def model_drafters(self) -> tuple[ModelDrafter, ...]:
        """The drafters that run a model."""
        return tuple(each.drafter for each in self._drafting)

    def forget_prompts(self) -> None:
        """Drop what caches, heads and token recycling keep of earlier requests, as if the pair had just been loaded.

        Running requests are finished first. What passes cost and what drafts were worth stays known.
        """
        with self._borrowed(self.cache_tokens):
            self._recycler.forget()  # holding every block has taken those that were kept
            for each in self._drafting:
                if isinstance(each.drafter, head.Head):
                    each.drafter.forget()


def _open_reference(folder: Path, pair: Pair, tokenizer: Tokenizer) -> Reference:
    vocabulary = hashlib.sha256((pair.target / "openvino_tokenizer.bin").read_bytes()).hexdigest()
    return Reference.of(folder, cache_folder(), vocabulary, lambda text: tokenizer.encode(text, False))
