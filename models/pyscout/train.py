"""Training of one model of the pair, on a CPU or a CUDA GPU, resumed where it was interrupted."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from outrider.export.distill.optimizers import Optimizers

from . import batches
from .batches import Batch
from .corpus import Function
from .supply import Supply
from .tasks import TaskMaker

SAVE_EVERY = 240.0  # seconds
LOG_EVERY = 20  # steps


@dataclass(frozen=True, slots=True)
class Budget:
    """When training ends: after `tokens`, or after `minutes` of training if that comes first."""

    tokens: int
    minutes: float = math.inf

    def progress(self, tokens: int, seconds: float) -> float:
        return min(1.0, max(tokens / self.tokens, seconds / 60 / self.minutes))


@dataclass(slots=True)
class State:
    """How far a training has come: the next pool of conversations, steps and tokens so far, seconds spent in steps."""

    pool: int = 0
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak learning rates: `matrices` of the layers (Muon), `others`: embedding and norms (AdamW)."""

    matrices: float = 0.012
    others: float = 0.004


def train(
    model: LlamaForCausalLM,
    functions: Sequence[Function],
    tokenizer: PreTrainedTokenizerFast,
    budget: Budget,
    batch_tokens: int,
    folder: Path,
    rates: Rates = Rates(),
    on_save: Callable[[LlamaForCausalLM, float], dict[str, float]] | None = None,
) -> None:
    """Train `model` in place; state, log and the finished checkpoint go to `folder`, which resumes if it has a state.

    `on_save(model, progress)` is called with every saved state, and what it returns is logged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device).train()
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    chosen = {id(weight) for weight in matrices}
    others = (weight for weight in model.parameters() if id(weight) not in chosen)
    optimizers = Optimizers(matrices, others, rates.matrices, rates.others)
    workers = (os.cpu_count() or 1) if device.type == "cuda" else 0
    supply = Supply(functions, TaskMaker(functions), tokenizer, batch_tokens, workers, batches.POOL)
    state = State()
    path = folder / "state.pt"
    if path.exists():
        saved = torch.load(path, map_location=device, weights_only=True)
        state = State(**saved["state"])
        model.load_state_dict(saved["model"])
        optimizers.restore(saved["optimizers"])
    progress = 0.0
    losses: list[float] = []
    last_save = time.monotonic()
    bar = tqdm(total=100, desc=f"training {folder.name}", unit="%", bar_format="{l_bar}{bar}| {elapsed}{postfix}")
    with contextlib.closing(supply.pools(state.pool, lambda: budget.progress(state.tokens, state.seconds))) as pools:
        for pool in pools:
            for batch in pool:
                progress = budget.progress(state.tokens, state.seconds)
                if progress == 1:
                    break
                start = time.monotonic()
                losses.append(_step(model, optimizers, batch, schedule(progress)))
                state.step += 1
                state.tokens += batch.ids.numel()
                state.seconds += time.monotonic() - start
                if state.step % LOG_EVERY == 0:
                    _log(folder, {**asdict(state), "progress": progress, "loss": sum(losses) / len(losses)})
                    bar.n = round(progress * 100, 2)
                    bar.set_postfix(loss=f"{losses[-1]:.3f}", tokens=state.tokens)
                    losses.clear()
            if progress == 1:
                break
            state.pool += 1
            if time.monotonic() - last_save > SAVE_EVERY:
                _save(path, model, optimizers, state)
                if on_save:
                    _log(folder, {**asdict(state), "progress": progress, **on_save(model, progress)})
                    model.train()
                last_save = time.monotonic()
    bar.close()
    _save(path, model, optimizers, state)
    (folder / "budget.json").write_text(json.dumps(asdict(state)))
    save_checkpoint(model, tokenizer, folder / "checkpoint")


def schedule(progress: float) -> float:
    """Share of the peak learning rate: a short rise, constant to 45%, then falling to zero."""
    return min(1.0, progress / 0.01 + 0.02, (1 - progress) / 0.55)


def loss_of(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the labelled tokens; logits are computed for those rows only."""
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=has_fast_bfloat16(ids.device)):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        rows = labels != batches.IGNORED
        logits = model.lm_head(hidden[rows])
    return nn.functional.cross_entropy(logits.float(), labels[rows])


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 matrix products run in hardware; without it they are slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu.get_capabilities().get("avx512_bf16", False)


def save_checkpoint(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """A float16 copy of the model and its tokenizer, in the layout of `transformers`; `folder` appears once it is
    complete.
    """
    partial = folder.with_suffix(".partial")
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.float16).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)


def _step(model: LlamaForCausalLM, optimizers: Optimizers, batch: Batch, rate: float) -> float:
    """One update at `rate` times the peak learning rates; returns the loss before it."""
    loss = loss_of(model, batch.ids.to(model.device), batch.labels.to(model.device))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizers.step(rate)
    return loss.item()


def _save(path: Path, model: nn.Module, optimizers: Optimizers, state: State) -> None:
    partial = path.with_suffix(".partial")
    values = {"state": asdict(state), "model": model.state_dict(), "optimizers": optimizers.state()}
    torch.save(values, partial)
    partial.replace(path)


def _log(folder: Path, entry: dict[str, float]) -> None:
    with (folder / "log.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")
