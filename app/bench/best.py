"""How close each run came to the best possible schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from outrider.pipelines import Generation, GenerationConfig, Pair, Tokenizer
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.runtime import Runtime
from outrider.pipelines.text.prompt import encode_prompt

from .measure import Run, plain_options
from .replay import Replay
from .schedule import best_ms, run_ms


class Pipeline(Protocol):
    """The part of LLMPipeline that is used here."""

    pair: Pair
    tokenizer: Tokenizer

    @property
    def speculation(self) -> Runtime: ...

    def get_generation_config(self) -> GenerationConfig: ...


def best_shares(
    pipeline: Pipeline, cost: CostModel, results: Sequence[Sequence[Run]]
) -> Mapping[tuple[int, str], float]:
    """The least possible time divided by that of the run, for (number of the task, mode); of single requests only.

    Both are times after the first token, by the same cost model, in which a change of the size of passes takes nothing;
    the time of the models that draft in the run is as measured, including that of proposals that were not used. The
    best schedule has no part for what is recycled from rejected rows, or for what a head or the target itself writes
    after the proposals of another drafter: with these the shares can be above 1.
    """
    numbers = [i for i, runs in enumerate(results) if not runs[0].task.is_batch]
    if not numbers:
        return {}
    single = [run.generations[0].stats for i in numbers for run in results[i]]
    longest = max(stats.prompt_tokens + stats.new_tokens for stats in single)
    replay = Replay.load(pipeline.pair, longest, pipeline.speculation)
    shares = {}
    for i in numbers:
        task, answer = results[i][0].task, results[i][0].generations[0]
        config = pipeline.get_generation_config().updated(plain_options(task))
        prompt = encode_prompt(task.prompts[0], None, pipeline.tokenizer, config.apply_chat_template)
        foresight = replay.foresight(prompt, answer.token_ids, config)
        for run in results[i]:
            taken = _taken_ms(run.generations[0], cost)
            if taken and run.generations[0].token_ids == answer.token_ids:
                shares[i, run.mode] = best_ms(foresight, cost) / taken
    return shares


def _taken_ms(generation: Generation, cost: CostModel) -> float:
    """The time after the first token."""
    written = [record for record in generation.trace if record.sources]
    context = generation.stats.prompt_tokens
    windows = []
    for before, record in pairwise(written):
        context += len(before.sources)
        windows.append((1 + len(record.drafted), context - 1))
    return run_ms(windows, 1e3 * sum(record.draft_s for record in written[1:]), cost)
