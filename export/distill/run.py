"""A distillation from checkpoint to checkpoint: the target answers prompts, and what drafts for it learns from that."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from outrider.models.digest import sha256
from outrider.models.errors import OutputExists
from outrider.models.room import blaming_full_disk
from outrider.models.staging import Staging
from outrider.pipelines.errors import InvalidOption, UnsupportedModel, VocabularyMismatch
from outrider.pipelines.model.vocabulary import check_same_vocabulary

from ..checkpoint import Checkpoint, find_checkpoint, require_weights
from ..convert import save_defaults
from ..errors import NotADecoder
from ..quiet import quiet
from ..renamed import known_form
from ..vocabulary import load_tokenizer, vocabulary
from .answers import read_answers, stretches_of, write_answers, write_whole
from .draft import distil
from .eagle3 import commonest_ids, new_head
from .head import distil_head
from .kinds import make_head
from .prompts import read_prompts
from .samples import Sample
from .settings import FOUR_STEPS, Distillation, Unrolling
from .trainable import TrainableHead

Kind = Literal["draft", "eagle3", "medusa", "hydra", "mtp", "exit"]
UNROLLED = ("eagle3", "mtp")  # kinds that learn as many steps as are wanted
WORK = "work"  # in the folder that is being made
DIGESTS = {"target_digest": "target", "draft_digest": "draft", "prompts_sha256": "prompts"}  # settings that tell files
# Settings that answers depend on; the others are of the training.
ANSWERING = ("target_digest", "prompts_sha256", "temperatures", "max_new_tokens", "seed", "batch_size")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be trained, and how.

    draft: the checkpoint that a draft model begins with; None for a head.
    taps: the layers that an EAGLE-3 head reads; None for the usual ones.
    draft_vocabulary: how many ids an EAGLE-3 head can propose; None for all.
    feed_forward: units of an EAGLE-3 head's feed-forward layer; None for as many as the target's.
    heads: how many Medusa or Hydra heads; None for three.
    exit_layer: how many layers of the target run below an exit; None for a third of them.
    """

    target: str
    kind: Kind
    prompts: Path
    how: Distillation
    draft: str | None = None
    taps: tuple[int, ...] | None = None
    draft_vocabulary: int | None = None
    feed_forward: int | None = None
    heads: int | None = None
    exit_layer: int | None = None
    unrolling: Unrolling = FOUR_STEPS
    remote_code: bool = False


def run(plan: Plan, out: Path, announce: Callable[[str], None] = lambda text: None) -> Path:
    """Make the checkpoint folder `out`, with `distillation.json` in it, and return its path.

    If it is interrupted, the same call continues where it was, and one with another training keeps the answers.
    announce: called with each step before it begins.

    Raises InvalidOption for a plan that cannot be carried out, OutputExists, the errors of `find_checkpoint`,
    `load_tokenizer` and `read_prompts`, NotADecoder, UnsupportedModel and VocabularyMismatch.
    """
    if os.path.lexists(out):
        raise OutputExists(f"{out} exists: choose another output folder, or move it away.")
    if not plan.prompts.is_file():
        raise InvalidOption(f"--prompts {plan.prompts} is not a file: give a file of JSON lines.")
    announce("Reading the checkpoints")
    checkpoint = find_checkpoint(plan.target, plan.remote_code, announce)
    start = None if plan.draft is None else find_checkpoint(plan.draft, plan.remote_code, announce)
    for each, role in ((checkpoint, "target"), (start, "draft")):
        if each is not None and each.is_head:
            raise NotADecoder(f"{each.source} is a head, which does not write text: give a model as --{role}.")
    tokenizer = load_tokenizer(checkpoint)
    if start is not None:
        words = [vocabulary(tokenizer), vocabulary(load_tokenizer(start))]
        check_same_vocabulary(words[0], words[1], f"{plan.target} and {plan.draft}")
    settings, record = _settings(plan, checkpoint, start), _sources(plan, checkpoint, start)
    target = _load(checkpoint)
    with quiet():
        prompts = read_prompts(plan.prompts, tokenizer, _room(plan, target))
    draft = None if start is None else _draft(plan, target, start)
    head = None if start is not None else _head(plan, target)
    with Staging(out, resume=True) as staging, blaming_full_disk(staging.path):
        work = staging.path / WORK
        answers = work / "answers.jsonl"
        _claim(work, settings, record, answers.exists(), announce)
        if not answers.exists():
            announce(f"Answering {len(prompts):,} prompts")
        write_answers(target, stretches_of(prompts, plan.how.batch_size), plan.how, answers, len(prompts))
        samples = read_answers(answers)
        if all(len(sample.ids) - sample.start < 2 for sample in samples):
            raise InvalidOption(f"{plan.target} ended all its answers at once: give other prompts.")
        tokens = sum(len(sample.ids) - sample.start for sample in samples)
        announce(f"Training on {tokens:,} tokens, {plan.how.epochs} times")
        if draft is not None:
            outcome = distil(target, draft, samples, plan.how, state=work / "state.pt")
            with quiet():
                _save(draft.half(), staging.path)
                tokenizer.save_pretrained(staging.path)
        else:
            assert head is not None
            head = _cut(plan, target, head, samples)
            unrolling = plan.unrolling
            if plan.kind not in UNROLLED:
                unrolling = replace(unrolling, steps=head.most_steps or 1)
            outcome = distil_head(target, head, samples, plan.how, unrolling, state=work / "state.pt")
            with quiet():
                head.save(staging.path)
        record |= settings
        record |= {"answers": len(samples), "tokens": tokens, "seconds": outcome.seconds, "losses": outcome.losses}
        (staging.path / "distillation.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
        staging.publish()
    shutil.rmtree(staging.out / WORK)
    return staging.out


def _draft(plan: Plan, target: PreTrainedModel, start: Checkpoint) -> PreTrainedModel:
    size = target.config.get_text_config().vocab_size
    draft = _load(start).float()
    if draft.config.get_text_config().vocab_size != size:
        raise VocabularyMismatch(
            f"{plan.target} has logits for {size} ids and {plan.draft} for "
            f"{draft.config.get_text_config().vocab_size}: take one with the same number."
        )
    return draft


def _head(plan: Plan, target: PreTrainedModel) -> TrainableHead:
    """Made before the target answers anything, so that what cannot be made is found out soon."""
    size = target.config.get_text_config().vocab_size
    if plan.draft_vocabulary is not None and plan.draft_vocabulary > size:
        raise InvalidOption(
            f"--draft-vocabulary {plan.draft_vocabulary} is more than the {size} ids of {plan.target}: lower it, or "
            "leave it out for all."
        )
    try:
        if plan.kind in ("medusa", "hydra", "mtp", "exit"):
            return make_head(plan.kind, target, plan.target, plan.how.seed, plan.heads, plan.exit_layer)
        return new_head(target, plan.taps, seed=plan.how.seed, feed_forward=plan.feed_forward)
    except ValueError as error:
        raise InvalidOption(f"No head can be made for {plan.target}: {error}.") from error


def _cut(plan: Plan, target: PreTrainedModel, head: TrainableHead, samples: Sequence[Sample]) -> TrainableHead:
    """The head with the vocabulary that the plan asks for."""
    if plan.draft_vocabulary is None:
        return head
    vocabulary = commonest_ids(samples, plan.draft_vocabulary)
    return new_head(target, plan.taps, vocabulary, seed=plan.how.seed, feed_forward=plan.feed_forward)


def _room(plan: Plan, target: PreTrainedModel) -> int:
    """The most tokens that a prompt may have."""
    context = getattr(target.config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        raise InvalidOption(f"{plan.target} does not say how many tokens it can hold: choose another target.")
    if plan.how.max_new_tokens < 2:
        raise InvalidOption("--max-new-tokens must be at least 2: what drafts learns from the second token on.")
    if plan.how.max_new_tokens >= context:
        raise InvalidOption(
            f"--max-new-tokens {plan.how.max_new_tokens} leaves no room for a prompt in the {context} tokens that "
            f"{plan.target} can hold: lower it."
        )
    return int(context - plan.how.max_new_tokens)


def _load(checkpoint: Checkpoint) -> PreTrainedModel:
    """Raises UnsupportedModel for what transformers cannot load, NoSuchModel for a checkpoint that lacks weights."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = "auto" if device == "cuda" else torch.float32  # half precision is slow on most CPUs
    with quiet(), known_form(checkpoint) as folder:
        try:
            model, loading = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                trust_remote_code=checkpoint.remote_code,
                local_files_only=True,
                output_loading_info=True,
            )
        except Exception as error:
            raise UnsupportedModel(
                f"transformers cannot load {checkpoint.source} ({type(error).__name__}: {error}): choose another model."
            ) from error
    require_weights(checkpoint.source, loading["missing_keys"])
    return model.to(device)


def _save(draft: PreTrainedModel, folder: Path) -> None:
    """Write a draft model with the generation configuration that it came with, whatever transformers thinks of it."""
    defaults, draft.generation_config = getattr(draft, "generation_config", None), GenerationConfig()
    draft.save_pretrained(folder)
    if defaults is not None:
        save_defaults(defaults, folder)


def _claim(
    work: Path, mine: dict[str, Any], sources: dict[str, Any], answered: bool, announce: Callable[[str], None]
) -> None:
    """Mark the work folder with these settings, so that no outcome of others is taken for one of them. Where only the
    training is another, remove what it made, and keep the answers.

    sources: where models and prompts were read, for the message if they are others.
    answered: whether all answers are there, which are then as good for batches of another size.

    Raises InvalidOption if there are answers with other settings.
    """
    work.mkdir(exist_ok=True)
    mark = work / "plan.json"
    theirs = json.loads(mark.read_text(encoding="utf-8")) if mark.exists() else mine
    changed = [name for name in mine if mine[name] != theirs.get(name)]
    answering = [name for name in changed if name in ANSWERING and not (answered and name == "batch_size")]
    if answering:
        told = [(name, theirs.get(name), mine[name]) for name in answering if name not in DIGESTS]
        files = [DIGESTS[name] for name in answering if name in DIGESTS]
        told += [(f"the {name}, with other content,", theirs.get(name), sources[name]) for name in files]
        shown = ", ".join(f"{name} was {before} and is {now}" for name, before, now in told)
        raise InvalidOption(
            f"{work.parent} holds an unfinished distillation with other settings ({shown}): repeat these to continue, "
            "or remove that folder to begin anew."
        )
    if changed:
        announce(f"Keeping the answers, and training anew with another {', '.join(DIGESTS.get(n, n) for n in changed)}")
        for leftover in {*work.parent.iterdir(), work / "state.pt"} - {work}:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)
    if changed or not mark.exists():
        write_whole(mark, json.dumps(sources | mine))


def _settings(plan: Plan, target: Checkpoint, start: Checkpoint | None) -> dict[str, Any]:
    """What the outcome depends on, as JSON takes it. Models are told by their files, which a new commit of their
    repository may leave as they were."""
    settings = {
        "kind": plan.kind,
        "target_digest": target.digest(),
        "draft_digest": start and start.digest(),
        "prompts_sha256": sha256(plan.prompts),
        "taps": plan.taps,
        "draft_vocabulary": plan.draft_vocabulary,
        "feed_forward": plan.feed_forward,
        "heads": plan.heads,
        "exit_layer": plan.exit_layer,
        **asdict(plan.how),
        "unrolling": None if plan.kind == "draft" else asdict(plan.unrolling),
    }
    return dict(json.loads(json.dumps(settings)))  # with lists in place of tuples, as it is read again


def _sources(plan: Plan, target: Checkpoint, start: Checkpoint | None) -> dict[str, Any]:
    """Where the models and the prompts were read."""
    return {
        "prompts": str(plan.prompts),
        "target": target.source,
        "target_revision": target.revision,
        "draft": start and start.source,
        "draft_revision": start and start.revision,
    }
