"""The model card, written from what was measured, so that its figures cannot drift from the evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from .corpus import MAX_CHARS
from .tasks import MOST_TURNS

TASKS = {
    "rename": "rename an identifier",
    "undoc": "remove the docstring",
    "repeat": "repeat",
    "doc": "add a docstring",
    "complete": "complete a function",
    "write": "write from signature and docstring",
    "plain": "bare code",
}
AIMS = {"small": {"rename": 0.5, "undoc": 0.7, "repeat": 0.8}, "base": {"rename": 0.85, "undoc": 0.85, "repeat": 0.95}}


KINDS = {"medusa": "Medusa", "hydra": "Hydra", "mtp": "MTP", "exit": "early exit"}
SHOWN = 3  # depths


def write(
    evaluation: dict[str, Any], head: dict[str, Any], heads: dict[str, Any], packages: Sequence[dict[str, Any]]
) -> str:
    """The text of `README.md` from the contents of `evaluation.json`, `head.json`, `heads.json` and `packages.json`."""
    parameters, training = evaluation["parameters"], evaluation["training"]
    return _TEXT.format(
        size=evaluation["size"],
        longest=MAX_CHARS,
        target_size=_millions(parameters["target"]),
        draft_size=_millions(parameters["draft"]),
        ratio=parameters["target"] / parameters["draft"],
        train_packages=sum(1 for p in packages if p["licence"] and not p["held_out"]),
        train_functions=_thousands(sum(p["functions"] for p in packages if not p["held_out"])),
        held_out_packages=sum(1 for p in packages if p["licence"] and p["held_out"]),
        held_out_functions=_thousands(sum(p["functions"] for p in packages if p["held_out"])),
        training=_training(training, evaluation["machine"]),
        distillation=_distillation(training["draft"]),
        exact=_exact(evaluation),
        perplexity=_perplexity(evaluation["perplexity"]),
        acceptance=_acceptance(evaluation["acceptance"]),
        cut_off=_cut_off(evaluation["acceptance"]),
        head_size=_millions(head["parameters"]),
        head_share=head["parameters"] / parameters["target"],
        draft_share=parameters["draft"] / parameters["target"],
        taps="{}, {} and {}".format(*head["taps"]),
        feed_forward=head["feed_forward"],
        head_training=_head_training(head["training"]),
        drafter_machine=heads["machine"],
        most_turns=MOST_TURNS,
        depths=_depths(head["acceptance"]),
        head_cases=max(f["cases"] for by_temperature in head["acceptance"].values() for f in by_temperature.values()),
        other_heads=_other_heads(heads["heads"]),
        other_depths=_other_depths(heads),
        other_cases=max(f["cases"] for by_temperature in heads["acceptance"].values() for f in by_temperature.values()),
        trained=_package_table(p for p in packages if p["licence"] and not p["held_out"]),
        held_out=_package_table(p for p in packages if p["licence"] and p["held_out"]),
        left_out=", ".join(p["name"] for p in packages if not p["licence"]),
    )


def _training(training: dict[str, Any], machine: str) -> str:
    states = [("target", training["target"])]
    if then := training["target"].get("then"):  # a run of the recipe has no such part
        states.append(("target, further", then))
    states.append(("draft, before distillation", training["draft-start"]))
    rows = [
        (
            label,
            state.get("machine", machine),
            _thousands(state["tokens"]),
            _thousands(state["step"]),
            f"{state['seconds'] / 60:.0f}",
        )
        for label, state in states
    ]
    table = _table(("model", "on", "tokens (with padding)", "steps", "minutes"), rows)
    return f"{table}\n\n{_further(then)}" if then else table


def _further(state: dict[str, Any]) -> str:
    return (
        f"Further training began with functions of all lengths, in batches of {_thousands(state['batch_tokens'])} "
        f"tokens, and learning rates that fell from {state['matrix_rate']:g} (Muon) and {state['rate']:g} (AdamW)."
    )


def _distillation(state: dict[str, Any]) -> str:
    fell = f"; the loss fell from {state['first_loss']:.3f} to {state['last_loss']:.3f}"
    return (
        f"{_answers(state)}, seen {state['epochs']:g} times, {state['seconds'] / 60:.0f} minutes"
        f"{'' if 'before' in state else fell}.{_before(state)}"
    )


def _answers(state: dict[str, Any]) -> str:
    return (
        f"{_thousands(state['answers'])} answers of the target ({_thousands(state['tokens'])} tokens, half of them "
        "greedy, half sampled at temperature 1)"
    )


def _head_training(state: dict[str, Any]) -> str:
    return (
        f"{state['steps']} drafts in a row from {state['places']} places, drawn anew each time, of each of "
        f"{_answers(state)}, {_seen(state)}.{_before(state)}"
    )


def _seen(state: dict[str, Any]) -> str:
    times = "once" if state["epochs"] == 1 else f"{state['epochs']:g} times"
    return f"seen {times}" + (f" on {state['machine']}" if "machine" in state else "")


def _before(state: dict[str, Any]) -> str:
    """From what it had learnt earlier: a run of the recipe has no such parts."""
    said = ""
    for name, of_whom in (("first", "of this target"), ("before", "of an earlier target")):
        if parts := state.get(name):
            learnt = (f"{_thousands(part['answers'])} answers, {_seen(part)}" for part in parts)
            said += f" Before that it had learnt from answers {of_whom}: {', then '.join(learnt)}."
    return said


def _depths(acceptance: dict[str, Any]) -> str:
    rows = []
    for task, by_temperature in acceptance.items():
        for temperature, found in by_temperature.items():
            head, draft = found["head"], found["draft"]
            cells = [f"{_share(a)} / {_share(b)}" for a, b in zip(head["by_depth"], draft["by_depth"], strict=True)]
            passes = f"{head['tokens_per_pass']:.2f} / {draft['tokens_per_pass']:.2f}"
            rows.append((TASKS[task], temperature.removeprefix("temperature "), *cells, passes))
    depths = (f"draft {depth}" for depth in range(1, len(rows[0]) - 2))
    return _table(("task", "temperature", *depths, "tokens a pass"), rows)


def _other_heads(heads: dict[str, Any]) -> str:
    rows = []
    for kind, about in heads.items():
        state = about["training"]
        losses = f"{state['first_loss']:.3f}, {state['last_loss']:.3f}"
        sizes = (_millions(about["parameters"]), f"{about['share_of_pass']:.0%}")
        seen = f"{_thousands(state['answers'])}, {state['epochs']:g}"
        rows.append((KINDS[kind], f"`checkpoints/{kind}`", *sizes, seen, losses))
    columns = ("head", "folder", "parameters", "read for a draft", "answers, times seen", "loss at first, at last")
    return _table(columns, rows)


def _other_depths(heads: dict[str, Any]) -> str:
    rows = []
    for task, by_temperature in heads["acceptance"].items():
        for temperature, found in by_temperature.items():
            cells = []
            for kind in heads["heads"]:
                shares = " / ".join(f"{share:.0%}" for share in found[kind]["by_depth"][:SHOWN])
                cells.append(f"{shares}, {found[kind]['tokens_per_pass']:.2f}")
            rows.append((TASKS[task], temperature.removeprefix("temperature "), *cells))
    return _table(("task", "temperature", *(KINDS[kind] for kind in heads["heads"])), rows)


def _exact(evaluation: dict[str, Any]) -> str:
    aims = AIMS[evaluation["size"]]
    rows = [
        (
            TASKS[task],
            str(found["cases"]),
            _share(found["exact"]),
            _share(found["alike"]),
            f"{_share(found['short_exact'])} of {found['short_cases']}",
            f"{aims[task]:.0%}",
        )
        for task, found in evaluation["exact"].items()
    ]
    return _table(("task", "functions", "exact", "ignoring white space", "exact, up to 300 characters", "aim"), rows)


def _perplexity(perplexity: dict[str, Any]) -> str:
    rows = [
        (name, f"{found['per_token']:.1f}", f"{found['bits_per_character']:.2f}", _thousands(found["tokens"]))
        for name, found in perplexity.items()
    ]
    return _table(("model", "perplexity per token", "bits per character", "tokens"), rows)


def _acceptance(acceptance: dict[str, Any]) -> str:
    rows = []
    for task, by_temperature in acceptance.items():
        cells = [f"{_share(f['acceptance'])} / {_share(f['agreement'])}" for f in by_temperature.values()]
        passes = [f"{f['tokens_per_pass']:.2f}" for f in by_temperature.values()]
        rows.append((TASKS[task], *cells, *passes))
    heads = [f"at {name}" for name in next(iter(acceptance.values()))]
    return _table(("task", *heads, *(f"tokens a pass {head}" for head in heads)), rows)


def _cut_off(acceptance: dict[str, Any]) -> str:
    shares = {task: acceptance[task]["temperature 0"]["cut_off"] for task in ("doc", "complete", "write", "plain")}
    return ", ".join(f"{share:.0%} of the answers to “{TASKS[task]}”" for task, share in shares.items())


def _package_table(packages: Iterable[dict[str, Any]]) -> str:
    rows = [(p["name"], p["version"], p["licence"], _thousands(p["functions"])) for p in packages]
    return _table(("package", "version", "licence", "functions"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f}M"


def _thousands(count: float) -> str:
    return f"{count:,.0f}"


_TEXT = """\
# pyscout

A small code-editing assistant for Python functions, made for Outrider and shipped with it, so that the first command \
works without a network. Rename an identifier, remove or add a docstring, repeat, complete or write a function: tasks \
in which much of the answer is already in the prompt, which is where speculation can be watched at work.

It is a toy that does these few things. It knows little about Python and nothing about the world: what it completes \
or writes by itself looks like code and means nothing. It has learnt conversations of up to 1,024 tokens, one function \
of up to {longest} characters at a time, in English, and has no safety training. Do not run code that it wrote.

## What it is
Size `{size}`. Target: Llama architecture, {target_size} parameters. Draft: the same architecture, {draft_size} \
parameters ({ratio:.1f} times fewer). One tokenizer for both: byte-level BPE of 4,096 tokens, in which a word becomes \
the same tokens after almost anything that can precede it in code (`tokenizer.py` says how).

`checkpoints/` holds both in float16, in the layout of `transformers`; `pair/` holds what OpenVINO runs. The licence \
is that of Outrider.

## How well it does, as measured
Measured on functions of packages that were never trained on, with requests in the usual wording.

Exact match, greedy, to the character:

{exact}

Perplexity of bare code:

{perplexity}

How often the target accepts the draft at draft length 5, when both add the same Gumbel noise. The first figure in a \
cell is accepted / drafted, where all five drafted tokens count even if the first is wrong; the second is the share of \
the target's tokens that the draft would have proposed:

{acceptance}

Where it has little to copy, a greedy answer of a model this small often runs in circles, which is easy to draft and \
flatters the figures at temperature 0: {cut_off} had not ended after 256 tokens.

## The head
`checkpoints/head` is an EAGLE-3 head of the target (arXiv 2503.01840) in the layout that optimum-intel exports, with \
{head_size} parameters in addition to the target's embedding, and {feed_forward} units in its feed-forward layer. It \
reads the outputs of layers {taps}, counted from 0, and can propose all 4,096 tokens. A drafted token reads weights of \
{head_share:.0%} of the size of those that a pass of the target reads, one of the draft model {draft_share:.0%}.

The share of places in the answers at which a draft is accepted together with all drafts before it, for {head_cases} \
functions a task; after the slash, the same for the draft model on the same answers. Tokens a pass are those at draft \
length 5:

{depths}

It starts from weights that can copy (`head_copying.py`) and learns {head_training} During training its \
weights are rounded to int4, so that little is lost when it is exported in int4.

## Heads of other kinds
`checkpoints/` holds four more heads of the target, in the layouts that `outrider distill` writes, for trying these \
kinds. Medusa and Hydra propose little of use: they have no attention with which to copy. MTP begins with weights that \
copy (`mtp_copying.py`); the early exit comes after the layers of the target that copy. All share the target's \
embedding and projection. “Read for a draft” is the size of the weights that one drafted token reads, including the \
projection, as a share of those that a pass of the target reads; for the exit it includes the layers of the target \
below it.

{other_heads}

How often drafts 1, 2 and 3 are accepted together with all drafts before them, and tokens a pass at draft length 5 (3 \
for Medusa and Hydra, which have three heads); {other_cases} functions a task:

{other_depths}

## What it learnt from
{train_functions} functions of 50 to {longest} characters from {train_packages} sources: the standard library and \
packages whose own metadata states a permissive licence. {held_out_functions} functions of {held_out_packages} other \
packages are kept for evaluation; functions that differ from a training function only in names and literals were \
removed from them. Packages are listed below with version and licence. Files that mention a copyleft licence, vendored \
code and tests are skipped. Nothing is installed or imported: sources are read out of the wheels.

## How it was trained
{training}

The target starts from weights that can already copy: two attention heads are laid out by hand as an induction circuit \
(`copying.py`). A trial of size `small` with ordinary initial weights, at somewhat higher learning rates, had a loss \
of 3.89 after 0.58M tokens; with these weights it was 1.22. The loss covers answers only, except for bare code; Muon \
trains the matrices, AdamW the rest; short functions come first.

The draft starts in the same way and is then distilled (`outrider.export.distill`): {distillation}

Unless something else is said, draft and heads were distilled on {drafter_machine}. All have learnt from \
conversations of up to {most_turns} requests.

This runs the whole recipe, at either size, on a CPU or a CUDA GPU, and resumes where it was interrupted. Size `base` \
was never trained:

```
python -m outrider.models.pyscout --size {size} --out models/pyscout
```

This card is written by the recipe from `evaluation.json` and `packages.json`.

## Training packages
{trained}

## Held-out packages
{held_out}

Downloaded and left out, since their metadata states no licence that we know to be permissive: {left_out}.
"""
