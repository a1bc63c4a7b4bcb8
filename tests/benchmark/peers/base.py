"""What every runtime has in common here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from outrider.app.bench.task import Task
from outrider.pipelines.model.processor import limited_properties


class CannotRun(Exception):
    """A peer, or one of its modes, cannot do what is asked; the message says exactly why."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Where the models are.

    pair: the exported pair. checkpoints: the folder with the checkpoints `target` and `draft` that it was made of.
    scratch: a folder for files made of them. threads: how many every peer may use. precision: what OpenVINO is to
        compute in, None where each peer has it as it likes.
    """

    pair: Path
    checkpoints: Path
    scratch: Path
    threads: int
    max_context: int
    precision: str | None

    @property
    def properties(self) -> dict[str, Any]:
        """Of OpenVINO, for every model of every peer that runs on it."""
        precision = {} if self.precision is None else {"INFERENCE_PRECISION_HINT": self.precision}
        return {"INFERENCE_NUM_THREADS": self.threads, **precision, **limited_properties()}


@dataclass(frozen=True, slots=True)
class Question:
    """A task with its prompts in tokens, so that no tokenizer is measured.

    `options` are the names of Outrider's GenerationConfig that all peers know: max_new_tokens, do_sample, temperature,
    rng_seed. `eos` ends an answer.
    """

    task: Task
    prompts: tuple[tuple[int, ...], ...]
    options: Mapping[str, Any]
    eos: int

    @property
    def is_greedy(self) -> bool:
        return not self.options.get("do_sample", False)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answers' tokens and the seconds until the first token, None for a batch, and until the last."""

    token_ids: tuple[tuple[int, ...], ...]
    ttft_s: float | None
    total_s: float

    @property
    def tokens_per_s(self) -> float | None:
        """After the first token; of a batch all tokens by all of the time."""
        count = sum(map(len, self.token_ids))
        if self.ttft_s is None:
            return count / self.total_s
        return (count - 1) / (self.total_s - self.ttft_s) if count > 1 and self.total_s > self.ttft_s else None


class Peer(Protocol):
    """A runtime with its models loaded."""

    modes: Sequence[str]  # the first one is plain decoding
    biased: Sequence[str]  # those whose samples are known not to follow the model's distribution
    versions: Mapping[str, str]

    def answer(self, mode: str, question: Question) -> Reply:
        """Answer with nothing kept from earlier answers. Raises CannotRun."""
        ...


def until_end(tokens: Sequence[int], eos: int) -> tuple[int, ...]:
    """The tokens up to the end token, the end token included."""
    return tuple(tokens[: tokens.index(eos) + 1] if eos in tokens else tokens)
