"""The stages of the recipe, each of which writes into the work folder and is skipped if its outcome exists already.

An outcome gets its name once it is complete, so a run that was interrupted anywhere is resumed by the same command.
"""

from __future__ import annotations

import json
import platform
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from outrider.export import export_pair
from outrider.export.distill import Outcome, Sample, Unrolling, distil
from outrider.export.distill.answers import STRETCH, read_answers, write_answers
from outrider.export.distill.eagle3 import load_head, new_head, save_head
from outrider.export.distill.exit import Exit
from outrider.export.distill.head import distil_head
from outrider.export.distill.kinds import load_sharing_head, make_head
from outrider.export.distill.medusa import Medusa
from outrider.export.distill.mtp import Mtp
from outrider.export.distill.trainable import SharingHead
from outrider.export.quiet import quiet
from outrider.pipelines.errors import InvalidOption

from . import batches, card, copying, corpus, head_copying, mtp_copying, tokenizer, wording
from .depth import evaluate_heads
from .evaluate import evaluate
from .sizes import SIZES, Size
from .tasks import MIX, TaskMaker
from .train import Budget, save_checkpoint, train


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the recipe.

    minutes, draft_minutes: bounds on the training of the target and of the draft's start.
    out: where the checkpoints, their export and the card go.
    prompts: how many the target answers for the draft to learn from; None: as many as the size says.
    """

    work: Path
    out: Path
    size: str
    wheels: Path | None
    minutes: float
    draft_minutes: float
    cases: int
    acceptance_cases: int
    prompts: int | None = None

    @property
    def config(self) -> Size:
        return SIZES[self.size]

    @property
    def data(self) -> Path:
        return self.work / "data"


def run_all(run: Run) -> None:
    """Data, tokenizer, target, draft, heads, evaluation, in this order, then the pair and its card.

    Raises InvalidOption for a work folder of another size.
    """
    _claim(run)
    make_data(run)
    make_tokenizer(run)
    train_model(run, "target", run.config.target_tokens, run.minutes)
    train_model(run, "draft-start", run.config.draft_tokens, run.draft_minutes)
    answer_prompts(run)
    distil_draft(run)
    train_head(run)
    train_other_heads(run)
    measure(run)
    measure_head(run)
    measure_other_heads(run)
    publish(run)


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
    partial = run.work / "tokenizer.partial"
    requests = [words for group in (wording.WORDING, wording.FOLLOW_UPS) for many in group.values() for words in many]
    texts = [function.source for function in _functions(run, "train")]
    tokenizer.train([*texts, *requests * 40, *["```python\n", "\n```"] * 200]).save_pretrained(partial)
    partial.rename(run.work / "tokenizer")


def train_model(run: Run, name: str, tokens: int, minutes: float) -> None:
    """Train the target, or what the draft is distilled from, on the tasks."""
    if (run.work / name / "checkpoint").exists():
        return
    torch.manual_seed(0)
    model = (run.config.target if name == "target" else run.config.draft).build()
    copying.initialize(model)
    functions = _functions(run, "train")
    train(model, functions, _tokenizer(run), Budget(tokens, minutes), run.config.batch_tokens, run.work / name)


def answer_prompts(run: Run) -> None:
    """Prompts from training functions, answered by the target, stretch by stretch."""
    count = run.config.distillation_prompts if run.prompts is None else run.prompts
    path = run.work / "answers.jsonl"
    if not path.exists():
        write_answers(_model(run, "target"), draft_prompts(run, count), run.config.distillation, path, count)


def draft_prompts(run: Run, count: int) -> Iterator[list[list[int]]]:
    """Token ids of `count` prompts in stretches, each sorted by length: all tasks, and beginnings of bare functions."""
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
        if len(stretch) == STRETCH * run.config.distillation.batch_size:
            yield sorted(stretch, key=len)
            stretch.clear()
    if stretch:
        yield sorted(stretch, key=len)


def distil_draft(run: Run) -> None:
    """The draft: what `draft-start` learnt from the data, brought close to the target on the target's own text."""
    folder = run.work / "draft"
    if (folder / "checkpoint").exists():
        return
    samples = read_answers(run.work / "answers.jsonl")
    draft = _model(run, "draft-start")
    folder.mkdir(exist_ok=True)
    outcome = distil(_model(run, "target"), draft, samples, run.config.distillation, state=folder / "state.pt")
    _write(folder / "budget.json", json.dumps(_summary(samples, run.config.distillation.epochs, outcome)))
    save_checkpoint(draft, _tokenizer(run), folder / "checkpoint")


def train_head(run: Run) -> None:
    """An EAGLE-3 head of the target, which begins with weights that copy and learns from the same answers."""
    folder = run.work / "head"
    if (folder / "checkpoint").exists():
        return
    samples = read_answers(run.work / "answers.jsonl")
    target = _model(run, "target")
    head = new_head(target, run.config.taps, feed_forward=run.config.head_feed_forward)
    head_copying.initialize(head, target, samples[:: max(1, len(samples) // FITTED)])
    folder.mkdir(exist_ok=True)
    outcome = distil_head(target, head, samples, run.config.head, run.config.head_unrolling, state=folder / "state.pt")
    learnt = {"steps": run.config.head_unrolling.steps, "places": run.config.head_unrolling.places}
    _write(folder / "budget.json", json.dumps(_summary(samples, run.config.head.epochs, outcome) | learnt))
    save_head(head, folder / "partial")
    (folder / "partial").rename(folder / "checkpoint")


def train_other_heads(run: Run) -> None:
    """Heads of the other kinds, from the same answers."""
    for kind, how in run.config.other_heads.items():
        folder = run.work / "heads" / kind
        if (folder / "checkpoint").exists():
            continue
        samples = read_answers(run.work / "answers.jsonl")
        target = _model(run, "target")
        head = make_head(kind, target, "../target")  # which is published next to it
        if isinstance(head, Mtp):
            mtp_copying.initialize(head, target, samples[:: max(1, len(samples) // FITTED)])
        folder.mkdir(parents=True, exist_ok=True)
        outcome = distil_head(target, head, samples, how, OTHER_UNROLLING, state=folder / "state.pt")
        _write(folder / "budget.json", json.dumps(_summary(samples, how.epochs, outcome)))
        head.save(folder / "partial")
        (folder / "partial").rename(folder / "checkpoint")


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
    _write(path, json.dumps({**about, **found}, indent=1))


def measure_head(run: Run) -> None:
    """Evaluate the head, and for comparison the draft, on the held-out packages and write `head.json`."""
    path = run.work / "head.json"
    if path.exists():
        return
    maker = TaskMaker(_functions(run, "train"))
    target, draft = _model(run, "target"), _model(run, "draft")
    head = load_head(run.work / "head" / "checkpoint", target)
    functions = _functions(run, "held_out")
    about = {
        "taps": list(head.config.eagle_taps),
        "feed_forward": head.config.intermediate_size,
        "parameters": sum(weight.numel() for weight in head.parameters() if weight.requires_grad),
        "training": _read(run.work / "head" / "budget.json"),
        "machine": _machine(),
    }
    found = evaluate_heads(target, draft, {"head": head}, _tokenizer(run), functions, maker, run.acceptance_cases)
    _write(path, json.dumps({**about, "acceptance": found}, indent=1))


def measure_other_heads(run: Run) -> None:
    """Evaluate the heads of the other kinds and write `heads.json`."""
    path = run.work / "heads.json"
    if path.exists():
        return
    maker = TaskMaker(_functions(run, "train"))
    target = _model(run, "target")
    folders = {kind: run.work / "heads" / kind for kind in run.config.other_heads}
    heads: dict[str, SharingHead] = {
        kind: load_sharing_head(folder / "checkpoint", target) for kind, folder in folders.items()
    }
    about = {
        kind: {
            "parameters": sum(weight.numel() for weight in heads[kind].own_weights().values()),
            "share_of_pass": weights_read(heads[kind], target) / target.num_parameters(),
            "training": _read(folder / "budget.json"),
        }
        for kind, folder in folders.items()
    }
    functions = _functions(run, "held_out")
    found = evaluate_heads(target, None, heads, _tokenizer(run), functions, maker, run.acceptance_cases)
    _write(path, json.dumps({"heads": about, "machine": _machine(), "acceptance": found}, indent=1))


def publish(run: Run) -> None:
    """Copy the checkpoints, export them, and write the card from what was measured."""
    checkpoints = {name: run.out / "checkpoints" / name for name in ("target", "draft", "head")}
    trained = {name: run.work / name for name in checkpoints}
    trained |= {kind: run.work / "heads" / kind for kind in run.config.other_heads}
    for name, folder in trained.items():
        shutil.rmtree(run.out / "checkpoints" / name, ignore_errors=True)
        shutil.copytree(folder / "checkpoint", run.out / "checkpoints" / name)
    export_pair(
        checkpoints["target"],
        checkpoints["draft"],
        run.out / "pair",
        head=checkpoints["head"],
        force=True,
        announce=print,
    )
    for name in ("evaluation.json", "head.json", "heads.json", "data/packages.json"):
        shutil.copy(run.work / name, run.out)
    figures = (_read(run.out / name) for name in ("evaluation.json", "head.json", "heads.json", "packages.json"))
    _write(run.out / "README.md", card.write(*figures))


OTHER_UNROLLING = Unrolling(steps=6, decay=0.9, places=48)
FITTED = 64  # answers from which the head's first weights are fitted
DISTILLATION_MIX = {**MIX, "complete": 30, "plain": 20}


def weights_read(head: SharingHead, target: LlamaForCausalLM) -> float:
    """How many weights a drafted token reads, on average over its depths: those of the head, of the target's projection
    and, for an exit, of the layers below it."""
    own = sum(weight.numel() for weight in head.own_weights().values())
    if isinstance(head, Medusa):
        own /= len(head.heads)
    if isinstance(head, Exit):
        own += sum(weight.numel() for layer in target.model.layers[: head.exit_layer] for weight in layer.parameters())
    return own + target.lm_head.weight.numel()


def _claim(run: Run) -> None:
    """Mark the work folder as this size's, so that no outcome of another size is mistaken for one of this."""
    mark = run.work / "size.txt"
    if mark.exists() and mark.read_text() != run.size:
        raise InvalidOption(
            f"--work {run.work} holds a run of size {mark.read_text()}, not {run.size}: name another folder."
        )
    run.work.mkdir(parents=True, exist_ok=True)
    _write(mark, run.size)


def _functions(run: Run, split: str) -> list[corpus.Function]:
    return corpus.load(run.data / f"{split}.jsonl")


def _tokenizer(run: Run) -> PreTrainedTokenizerFast:
    return tokenizer.load(run.work / "tokenizer")


def _model(run: Run, name: str) -> LlamaForCausalLM:
    with quiet():
        model = LlamaForCausalLM.from_pretrained(run.work / name / "checkpoint", dtype=torch.float32)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def _summary(samples: Sequence[Sample], epochs: int, outcome: Outcome) -> dict[str, Any]:
    """What the card says of a distillation."""
    return {
        "answers": len(samples),
        "tokens": sum(len(sample.ids) - sample.start for sample in samples),
        "epochs": epochs,
        "first_loss": outcome.losses[0],
        "last_loss": sum(outcome.losses[-50:]) / len(outcome.losses[-50:]),
        "seconds": outcome.seconds,
    }


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    partial.replace(path)


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{torch.get_num_threads()} CPU threads ({platform.machine()})"
