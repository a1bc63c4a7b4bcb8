"""The training that draft models and heads share: batches of samples, schedule, progress, and going on from a state."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from outrider.pipelines.errors import InvalidOption

from .optimizers import Optimizers
from .progress import progress_bar
from .rounding import PROJECTION, rounding
from .samples import Sample, shuffled_batches
from .settings import Distillation

SAVE_EVERY = 240.0  # seconds
EMBEDDING = "embed_tokens"

OnStep = Callable[[int, float], Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The loss of every step, and the seconds of training without interruptions."""

    losses: list[float] = field(repr=False)
    seconds: float


def train(
    model: nn.Module,
    samples: Sequence[Sample],
    loss_of: Callable[[Sequence[Sample], random.Random], torch.Tensor],
    how: Distillation,
    on_step: OnStep | None = None,
    state: Path | None = None,
) -> Outcome:
    """Train the weights of `model` that require a gradient, in place. `on_step(step, loss)` is called after each step.

    loss_of: the loss of a batch, a scalar; what it draws comes from the generator, which is new in each step.
    state: a file that is written every few minutes and at the end. If it exists already, the same call continues from
        it, and ends with the weights that an uninterrupted one ends with.

    Raises ValueError if there is no sample, and InvalidOption if the training diverges.
    """
    if not samples:
        raise ValueError("there are no samples to train on")
    with rounding(model, how.group_size):
        return _train(model, samples, loss_of, how, on_step, state)


def _train(
    model: nn.Module,
    samples: Sequence[Sample],
    loss_of: Callable[[Sequence[Sample], random.Random], torch.Tensor],
    how: Distillation,
    on_step: OnStep | None,
    state: Path | None,
) -> Outcome:
    model.eval()  # without dropout, which blurs what is to be imitated, and would be drawn anew after an interruption
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    optimizers = _optimizers(trained, how)
    steps = how.epochs * -(-len(samples) // how.batch_size)
    losses: list[float] = []
    before = 0.0  # seconds, of an earlier call
    if state and state.exists():
        saved = torch.load(state, map_location=next(model.parameters()).device, weights_only=True)
        model.load_state_dict(saved["model"], strict=False)
        optimizers.restore(saved["optimizers"])
        losses, before = saved["losses"], saved["seconds"]
    done, start = len(losses), time.monotonic()
    last_save = start
    rng = random.Random(how.seed)
    with progress_bar("distilling", steps, "step", done) as bar:
        for epoch in range(how.epochs):
            for number, batch in enumerate(shuffled_batches(samples, how.batch_size, rng)):
                if epoch * steps // how.epochs + number < done:
                    continue
                loss = loss_of(batch, random.Random(f"{how.seed} {len(losses)}"))
                loss.backward()
                nn.utils.clip_grad_norm_(trained.values(), 1.0)
                optimizers.step(schedule(len(losses) / steps, 1 / steps, how.warm_up))
                losses.append(loss.item())
                if not math.isfinite(losses[-1]):
                    raise InvalidOption(
                        f"The training diverged: the loss of step {len(losses):,} is {losses[-1]}. Choose a lower "
                        "--learning-rate; the answers are kept."
                    )
                bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
                bar.update()
                if on_step:
                    on_step(len(losses), losses[-1])
                if state and (len(losses) == steps or time.monotonic() - last_save > SAVE_EVERY):
                    _save(state, trained, optimizers, Outcome(losses, before + time.monotonic() - start))
                    last_save = time.monotonic()
    return Outcome(losses, before + time.monotonic() - start)


def schedule(progress: float, step: float, warm_up: float) -> float:
    """Share of the peak learning rate: a rise over the share `warm_up` of the training, then falling to zero.

    progress: the share of the training before this step. step: the share that one step is.
    """
    return min(1.0, (progress + step) / warm_up if warm_up else 1.0, 1 - progress)


def _optimizers(trained: dict[str, nn.Parameter], how: Distillation) -> Optimizers:
    """Muon is not made for matrices with a row for each token: the embedding and the projection."""
    if how.matrix_rate is None:
        return Optimizers((), trained.values(), 0.0, how.learning_rate)
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, weight in trained.items():
        of_layer = weight.ndim == 2 and not {EMBEDDING, PROJECTION} & set(name.split("."))
        (matrices if of_layer else others).append(weight)
    return Optimizers(matrices, others, how.matrix_rate, how.learning_rate)


def _save(path: Path, trained: dict[str, nn.Parameter], optimizers: Optimizers, outcome: Outcome) -> None:
    partial = path.with_suffix(".partial")
    weights = {name: weight.detach() for name, weight in trained.items()}
    torch.save({"model": weights, "optimizers": optimizers.state(), **asdict(outcome)}, partial)
    partial.replace(path)
