"""The command `outrider distill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from outrider.pipelines.errors import InvalidOption
from outrider.pipelines.privacy import keep_private

from .command import as_argument, clocked, output_folder, plain_app, stop_cleanly
from .extra import require_extra

app = plain_app()

ONLY_FOR = {  # kinds that an option is for
    "--taps": ("eagle3",),
    "--draft-vocabulary": ("eagle3",),
    "--feed-forward": ("eagle3",),
    "--unrolled-steps": ("eagle3", "mtp"),
    "--places": ("eagle3", "medusa", "hydra", "mtp", "exit"),
    "--heads": ("medusa", "hydra"),
    "--exit-layer": ("exit",),
}


@app.command()
def distill_command(
    target: Annotated[str, typer.Option(help="Folder of a checkpoint, or hub id ORG/NAME[@REVISION] to download.")],
    kind: Annotated[
        Literal["draft", "eagle3", "medusa", "hydra", "mtp", "exit"],
        typer.Option(help="What to train: a draft model, or a head of this kind; exit drafts with the lower layers."),
    ],
    prompts: Annotated[
        Path,
        typer.Option(help='File with one {"prompt": "..."} or {"messages": [...]} a line.'),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint.")],
    draft: Annotated[
        str | None, typer.Option(help="Folder or hub id of the draft model to begin with, for --kind draft.")
    ] = None,
    taps: Annotated[
        str | None,
        typer.Option(
            help="The three layers that an EAGLE-3 head reads, counted from 0, such as 1,17,32.",
            show_default="early, middle and late ones",
        ),
    ] = None,
    draft_vocabulary: Annotated[
        int | None,
        typer.Option(help="Let an EAGLE-3 head propose only this many of the commonest tokens.", show_default="all"),
    ] = None,
    feed_forward: Annotated[
        int | None,
        typer.Option(help="Units of an EAGLE-3 head's feed-forward layer.", show_default="as many as the target's"),
    ] = None,
    unrolled_steps: Annotated[
        int | None,
        typer.Option(help="Drafts in a row that an EAGLE-3 or MTP head learns from each place.", show_default="4"),
    ] = None,
    places: Annotated[
        int | None,
        typer.Option(
            help="A head learns from at most this many places of an answer each time, drawn anew.", show_default="all"
        ),
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="How many Medusa or Hydra heads, each for one more token.", show_default="3")
    ] = None,
    exit_layer: Annotated[
        int | None,
        typer.Option(help="How many layers of the target run below an exit.", show_default="a third of them"),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="Temperature at which the target answers; can be repeated.", show_default="0 and 1"),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 256,
    epochs: Annotated[int, typer.Option(help="How often each answer is used.")] = 2,
    batch_size: Annotated[int, typer.Option(help="Answers a step.")] = 16,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    variation: Annotated[
        float, typer.Option(help="Weight of total variation in the loss, 0..1; the rest is KL divergence.")
    ] = 0.5,
    int4_group_size: Annotated[
        int | None,
        typer.Option(
            help="Round weights to int4 in groups of this size while they are trained, as export --draft-weights int4 "
            "does.",
            show_default="not rounded",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the answers and the training.")] = 0,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code of the checkpoints. Read it first.")
    ] = False,
) -> None:
    """Train a draft model or a head for a target, on the target's own answers to your prompts.

    If it is interrupted, the same command continues where it was, and one with other options for the training, such as
    --learning-rate or --kind, keeps the answers.
    """
    keep_private(network=True)
    stop_cleanly()
    given = {
        "--taps": taps, "--draft-vocabulary": draft_vocabulary, "--feed-forward": feed_forward,
        "--unrolled-steps": unrolled_steps, "--places": places, "--heads": heads, "--exit-layer": exit_layer,
    }  # fmt: skip
    for name, value in given.items():
        if value is not None and kind not in ONLY_FOR[name]:
            raise InvalidOption(
                f"{name} is for --kind {' and '.join(ONLY_FOR[name])}, and --kind is {kind}: leave it out."
            )
    if kind == "draft" and draft is None:
        raise InvalidOption("--kind draft requires --draft, the checkpoint of the draft model to begin with.")
    if kind != "draft" and draft is not None:
        raise InvalidOption(f"--draft {draft} is for --kind draft: leave it out.")
    for name, count in (("--draft-vocabulary", draft_vocabulary), ("--feed-forward", feed_forward), ("--heads", heads)):
        if count is not None and count < 1:
            raise InvalidOption(f"{name} must be at least 1, not {count}.")
    layers = None if taps is None else _layers(taps)
    require_extra()
    from .distill.run import Plan, run
    from .distill.settings import FOUR_STEPS, Distillation, Unrolling

    settings: dict[str, Any] = {
        "variation": variation,
        "epochs": epochs,
        "batch_size": batch_size,
        "max_new_tokens": max_new_tokens,
        "learning_rate": learning_rate,
        "seed": seed,
        "group_size": int4_group_size,
    }
    if temperature:
        settings["temperatures"] = tuple(temperature)
    try:
        how = Distillation(**settings)
        unrolling = Unrolling(FOUR_STEPS.steps if unrolled_steps is None else unrolled_steps, places=places)
    except ValueError as error:
        raise InvalidOption(f"{error}.") from error
    if prompts.parts[:1] == ("~",):  # shells leave that to us after --prompts=
        prompts = prompts.expanduser()
    plan = Plan(
        target, kind, prompts, how, draft, layers, draft_vocabulary, feed_forward, heads, exit_layer, unrolling,
        trust_remote_code,
    )  # fmt: skip
    try:
        folder = run(plan, output_folder(out), clocked())
    except KeyboardInterrupt:
        typer.echo("\nInterrupted. The same command continues with what was saved.", err=True)
        raise typer.Exit(130) from None
    options = f"--target {as_argument(target)} --draft {as_argument(folder)}"
    if int4_group_size is not None:
        options += f" --draft-weights int4 --group-size {int4_group_size}"
    if trust_remote_code:
        options += " --trust-remote-code"
    typer.echo(f"Made {folder}. Make a pair of it: outrider export {options} --out PAIR")


def main(arguments: list[str]) -> None:
    """Run the command with the arguments after `outrider distill`."""
    app(arguments, prog_name="outrider distill")


def _layers(taps: str) -> tuple[int, ...]:
    try:
        return tuple(int(layer) for layer in taps.split(","))
    except ValueError as error:
        raise InvalidOption(f"--taps {taps} is not a list of layers: give three, such as 1,17,32.") from error
