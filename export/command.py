"""The command `outrider export`."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer

from outrider.pipelines.errors import InvalidOption
from outrider.pipelines.privacy import keep_private

from .compression import Compression, WeightFormat, compressions
from .device import Device, default_weights
from .device_check import NPU_ON_CPU, is_here
from .pair_export import export_pair


def plain_app() -> typer.Typer:
    """A command line without boxes, which would cut the names of long options, and with errors of one line."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app = plain_app()


@app.command()
def export_command(
    target: Annotated[str, typer.Option(help="Folder of a checkpoint, or hub id ORG/NAME[@REVISION] to download.")],
    out: Annotated[Path, typer.Option(help="Folder for the pair.")],
    draft: Annotated[
        str | None, typer.Option(help="Folder or hub id of a draft model, or of a head.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="Folder or hub id of a head to add; the target's checkpoint if it holds one."),
    ] = None,
    skip_layers: Annotated[
        str,
        typer.Option(
            metavar="auto|none|LAYERS",
            help="Layers that the target leaves out when it drafts by itself, such as 5,6,9; auto tries which.",
        ),
    ] = "none",
    exit_layer: Annotated[
        int | None,
        typer.Option(help="The target drafts by itself with the layers before this one.", show_default="none"),
    ] = None,
    device: Annotated[
        Device, typer.Option("--for", help="Device that the target is to run on.", case_sensitive=False)
    ] = "CPU",
    target_weights: Annotated[
        WeightFormat | None, typer.Option(help="Weight format of the target.", show_default="int8; int4 for an NPU")
    ] = None,
    draft_weights: Annotated[
        WeightFormat | None, typer.Option(help="Weight format of draft model and head.", show_default="int8")
    ] = None,
    head_weights: Annotated[
        WeightFormat | None, typer.Option(help="Weight format of the head.", show_default="the draft model's")
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            help="Weights per scale, for int4; -1 is one scale per row.",
            show_default="128; -1 for an NPU from 5 billion weights on",
        ),
    ] = None,
    symmetric: Annotated[
        bool | None,
        typer.Option(
            "--symmetric/--asymmetric", help="Without or with zero points, for int8 and int4.", show_default="symmetric"
        ),
    ] = None,
    ratio: Annotated[
        float | None, typer.Option(help="Share of the weights stored in int4; the rest in int8.", show_default="1.0")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing pair once the new one is complete.")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code of the checkpoints. Read it first.")
    ] = False,
) -> None:
    """Convert, compress and check a target and what drafts for it. Models given by hub id are downloaded."""
    keep_private(network=True)
    stop_cleanly()
    drafts = draft is not None or head is not None
    for name, weights in (("--draft-weights", draft_weights), ("--head-weights", head_weights)):
        if weights is not None and not drafts:
            raise InvalidOption(f"{name} {weights} requires --draft or --head: leave it out.")
    formats: dict[str, WeightFormat] = {"target": target_weights or default_weights(device)}
    if drafts:
        formats["draft"] = draft_weights or "int8"
    if head_weights is not None:
        formats["head"] = head_weights
    found = compressions([*formats.values()], symmetric=symmetric, group_size=group_size, ratio=ratio)
    by_role = dict(zip(formats, found, strict=True))
    folder = export_pair(
        target,
        draft,
        output_folder(out),
        target_compression=by_role["target"],
        draft_compression=by_role.get("draft", Compression()),
        head_compression=by_role.get("head"),
        device=device,
        head=head,
        skip_layers=_layers(skip_layers),
        exit_layer=exit_layer,
        force=force,
        remote_code=trust_remote_code,
        announce=clocked(),
    )
    typer.echo(f"Made {folder}. {_how_to_try(folder, device)}{_without_head(folder, device)}")


def main(arguments: list[str]) -> None:
    """Run the command with the arguments after `outrider export`."""
    app(arguments, prog_name="outrider export")


def _layers(given: str) -> Sequence[int] | Literal["auto"]:
    """Raises InvalidOption."""
    if given == "auto":
        return "auto"
    try:
        return [] if given == "none" else [int(layer) for layer in given.split(",")]
    except ValueError as error:
        raise InvalidOption(f"--skip-layers {given} names no layers: give auto, none, or numbers like 5,6.") from error


def _how_to_try(pair: Path, device: Device) -> str:
    command = f"outrider chat --pair {as_argument(pair)}"
    if device == "CPU":
        return f"Try it: {command}"
    command += f" --device {device}"
    if is_here(device):
        return f"Try it: {command}"
    if device == "GPU":
        return f"Try it on a machine with a GPU: {command}"
    stand_in = "".join(f" --property {name}={value}" for name, value in NPU_ON_CPU.items())
    return f"Try it on a machine with an NPU: {command}; here the CPU can stand in for one: {command}{stand_in}"


def _without_head(pair: Path, device: Device) -> str:
    if device == "CPU" or not (pair / "head").is_dir():
        return ""
    return " The head drafts on the CPU alone: without --device it is used."


def output_folder(given: Path) -> Path:
    """The folder that --out names, with the home folder in place of a tilde. Raises InvalidOption."""
    try:
        folder = given.expanduser()
    except RuntimeError as error:
        raise InvalidOption(f"--out {given} is in a home folder that is not known: give its full path.") from error
    if not folder.absolute().name:
        raise InvalidOption(f"--out {given} is a whole disk: name a folder on it.")
    return folder


def as_argument(given: str | Path) -> str:
    """How a path is written in a command."""
    if os.name != "nt":
        return shlex.quote(str(given))
    return f'"{given}"' if " " in str(given) else str(given)


def clocked() -> Callable[[str], None]:
    """A callback that prints each step to standard error with the seconds since the start."""
    start = time.monotonic()
    return lambda text: print(f"{time.monotonic() - start:6.1f} s  {text}", file=sys.stderr, flush=True)


def stop_cleanly() -> None:
    """Make SIGINT, SIGTERM and SIGHUP exit through the clean-up code, wherever they arrive."""

    def leave(number: int, frame: FrameType | None) -> None:
        if _in_finalizer(frame):  # Python would print what is raised there, and go on
            threading.Timer(0.1, signal.raise_signal, [number]).start()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            sys.exit(128 + number)

    names = ("SIGINT", "SIGTERM", "SIGHUP")  # no SIGHUP on Windows
    for number in [getattr(signal, name) for name in names if hasattr(signal, name)]:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, leave)


def _in_finalizer(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
