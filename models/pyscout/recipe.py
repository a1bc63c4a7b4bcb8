"""The stages of the recipe, each of which writes into the work folder and is skipped when its outcome is there."""

from __future__ import annotations

import json
import platform
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from outrider.export.distill import Sample, distil, write_samples

from . import batches, card, copying, corpus, tokenizer, wording
from .evaluate import evaluate
from .sizes import SIZES, Size
from .tasks import MIX, TaskMaker
from .train import Budget, save_checkpoint, train

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the recipe. `minutes` bounds the training of the target, `draft_minutes` that of the draft's start."""

    work: Path
    size: str
    wheels: Path | None
    minutes: float
    draft_minutes: float
    cases: int
    acceptance_cases: int

    @property
    def config(self) -> Size:
        return SIZES[self.size]

    @property
    def data(self) -> Path:
        return self.work / "data"


def run_all(run: Run) -> None:
    """Data, tokenizer, target, draft, evaluation, in this order, then the repository's checkpoints and card."""
    make_data(run)
    make_tokenizer(run)
    train_model(run, "target", run.config.target_tokens, run.minutes)
    train_model(run, "draft-start", run.config.draft_tokens, run.draft_minutes)
    write_answers(run)
    distil_draft(run)
    measure(run)
    publish(run, HERE)


def make_data(run: Run) -> None:
    """Functions of permissively licensed packages, split by package."""
    if (run.data / "packages.json").exists():
        return
    wheels = run.wheels
    if wheels is None:
        wheels = run.work / "wheels"
        corpus.download(wheels)
    corpus.build(wheels, run.data)


def make_tokenizer(run: Run) -> None:
    """The tokenizer, learnt from the training functions and the wording of the tasks."""
    if (run.work / "tokenizer").exists():
        return
    requests = [words for group in (wording.WORDING, wording.FOLLOW_UPS) for many in group.values() for words in many]
    texts = [function.source for function in _functions(run, "train")]
    tokenizer.train([*texts, *requests * 40, *["```python\n", "\n```"] * 200]).save_pretrained(run.work / "tokenizer")


def train_model(run: Run, name: str, tokens: int, minutes: float) -> None:
    """Train the target, or what the draft is distilled from, on the tasks."""
    if (run.work / name / "checkpoint").exists():
        return
    torch.manual_seed(0)
    model = (run.config.target if name == "target" else run.config.draft).build()
    copying.initialize(model)
    functions = _functions(run, "train")
    train(model, functions, _tokenizer(run), Budget(tokens, minutes), run.config.batch_tokens, run.work / name)


def write_answers(run: Run) -> None:
    """Prompts from training functions, answered by the target."""
    path = run.work / "answers.jsonl"
    if path.exists():
        return
    target = _model(run, "target")
    partial = path.with_suffix(".partial")
    count = run.config.distillation_prompts
    with partial.open("w") as file:
        samples = write_samples(target, draft_prompts(run, count), run.config.distillation)
        for sample in tqdm(samples, desc="target writes", total=count, unit="answer"):
            file.write(json.dumps([sample.ids, sample.start]) + "\n")
    partial.replace(path)


def draft_prompts(run: Run, count: int) -> Iterator[list[int]]:
    """Token ids of `count` prompts: all tasks, and the beginnings of bare functions; sorted by length in stretches."""
    vocabulary, functions, rng = _tokenizer(run), _functions(run, "train"), random.Random("prompts")
    maker = TaskMaker(functions)
    stretch: list[list[int]] = []
    for _ in range(count):
        conversation = maker.draw(rng.choice(functions), DISTILLATION_MIX, rng)
        if conversation.prompt:
            stretch.append(batches.prompt_ids(vocabulary, conversation))
        else:
            ids = vocabulary.encode(conversation.answer)
            stretch.append(ids[: rng.randint(1, max(1, len(ids) // 2))])
        if len(stretch) == 16 * run.config.distillation.batch_size:
            yield from sorted(stretch, key=len)
            stretch.clear()
    yield from sorted(stretch, key=len)


def distil_draft(run: Run) -> None:
    """The draft: what `draft-start` learnt from the data, brought close to the target on the target's own text."""
    folder = run.work / "draft"
    if (folder / "checkpoint").exists():
        return
    lines = (run.work / "answers.jsonl").read_text().splitlines()
    samples = [Sample(*json.loads(line)) for line in lines]
    draft = _model(run, "draft-start")
    start = time.monotonic()
    losses = distil(_model(run, "target"), draft, samples, run.config.distillation)
    save_checkpoint(draft, _tokenizer(run), folder / "checkpoint")
    summary = {
        "answers": len(samples),
        "tokens": sum(len(sample.ids) - sample.start for sample in samples),
        "epochs": run.config.distillation.epochs,
        "first_loss": losses[0],
        "last_loss": sum(losses[-50:]) / len(losses[-50:]),
        "seconds": time.monotonic() - start,
    }
    (folder / "budget.json").write_text(json.dumps(summary))


def measure(run: Run) -> None:
    """Evaluate the pair on the held-out packages and write `evaluation.json`."""
    path = run.work / "evaluation.json"
    if path.exists():
        return
    maker = TaskMaker(_functions(run, "train"))
    target, draft = _model(run, "target"), _model(run, "draft")
    found = evaluate(
        target, draft, _tokenizer(run), _functions(run, "held_out"), maker, run.cases, run.acceptance_cases
    )
    about = {
        "size": run.size,
        "parameters": {"target": target.num_parameters(), "draft": draft.num_parameters()},
        "training": {name: _read(run.work / name / "budget.json") for name in ("target", "draft-start", "draft")},
        "machine": _machine(),
    }
    path.write_text(json.dumps({**about, **found}, indent=1))


def publish(run: Run, folder: Path) -> None:
    """Copy the checkpoints to `folder/checkpoints` and write the card from what was measured."""
    for name in ("target", "draft"):
        out = folder / "checkpoints" / name
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(run.work / name / "checkpoint", out)
    for name in ("evaluation.json", "data/packages.json"):
        shutil.copy(run.work / name, folder / Path(name).name)
    (folder / "README.md").write_text(card.write(_read(folder / "evaluation.json"), _read(folder / "packages.json")))


DISTILLATION_MIX = {**MIX, "complete": 30, "plain": 20}


def _functions(run: Run, split: str) -> list[corpus.Function]:
    return corpus.load(run.data / f"{split}.jsonl")


def _tokenizer(run: Run) -> PreTrainedTokenizerFast:
    return tokenizer.load(run.work / "tokenizer")


def _model(run: Run, name: str) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(run.work / name / "checkpoint", dtype=torch.float32)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{torch.get_num_threads()} CPU threads ({platform.machine()})"
