"""`outrider models`: lists, downloads and removes pairs of the catalogue."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.pipelines.errors import InvalidOption, OutriderError
from outrider.pipelines.privacy import keep_private

from .options import Device, DraftDevice

if TYPE_CHECKING:
    from rich.table import Table

    from outrider.models.catalogue import Catalogue
    from outrider.models.pulled import Pulled

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="List, download and remove pairs of the Hugging Face hub.",
)


@app.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """List the pairs and heads of the catalogue, and the pulled pairs."""
    keep_private()
    from rich.console import Console

    from outrider.models.catalogue import Catalogue
    from outrider.models.pulled import half_removed, pairs_folder, pulled_pairs, unfinished
    from outrider.models.room import in_words

    catalogue, folder = Catalogue.shipped(), pairs_folder()
    pulled = {pair.name: pair for pair in pulled_pairs(folder)}
    if as_json:
        typer.echo(json.dumps(_listed(catalogue, folder, pulled)))
        return
    console = Console()
    begun = unfinished(folder)
    console.print(_table(catalogue, begun, pulled))
    for pair in pulled.values():
        if pair.problem:
            again = f" Remove it with `outrider models remove {pair.name}` to pull it again."
            problem = pair.problem + again * (pair.name in catalogue.names)
            console.print(f"{pair.name} cannot be used: {problem}", markup=False, highlight=False)
    for name, left in begun.items():
        if name not in catalogue.names:
            console.print(
                f"{name} is unfinished, {in_words(left)}, and not in the catalogue, so no pull goes on with it: "
                f"`outrider models remove {name}` frees the space.",
                markup=False,
                highlight=False,
            )
    for name, left in half_removed(folder).items():
        console.print(
            f"{name} was not removed to the end, {in_words(left)} are left: run `outrider models remove {name}` again.",
            markup=False,
            highlight=False,
        )
    console.print(f"{catalogue.note}\nPulled pairs are in {folder}.\n", markup=False, highlight=False)
    console.print("Heads, which draft from their target's hidden states. A pair is made of both:\n", highlight=False)
    for head in catalogue.heads:
        console.print(f"{head.command}\n    {head.kind}, {head.licence}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="The pair's name in the catalogue.")],
    without_draft: Annotated[bool, typer.Option("--without-draft", help="Download the target model only.")] = False,
    revision: Annotated[
        str | None,
        typer.Option(
            metavar="COMMIT",
            help="Commit of the target's repository, 40 hexadecimal digits.",
            show_default="the one in the catalogue, or the newest",
        ),
    ] = None,
    draft_revision: Annotated[
        str | None, typer.Option(metavar="COMMIT", help="Commit of the draft's repository.")
    ] = None,
    device: Device = "CPU",
    draft_device: DraftDevice = "CPU",
) -> None:
    """Download a pair, check it, and measure its speed here. Run it again to resume an interrupted download."""
    keep_private(network=True)
    from rich.console import Console

    from outrider.models.catalogue import Catalogue
    from outrider.models.pull import pull as fetch_pair
    from outrider.models.pulled import pairs_folder
    from outrider.pipelines.devices.devices import check_device

    from ..load_options import LoadOptions
    from .doctor import examine

    for each in (device, draft_device):  # before hours of downloading
        check_device(each)
    entry = Catalogue.shipped().entry(name)
    revisions = _commits(("target", "--revision", revision), ("draft", "--draft-revision", draft_revision))
    if draft_revision is not None and (without_draft or entry.draft is None):
        raise InvalidOption(f"--draft-revision requires a draft, but none is downloaded for {name}: leave it out.")
    if draft_device != "CPU" and (without_draft or entry.draft is None):
        raise InvalidOption(f"--draft-device requires a draft, but none is downloaded for {name}: leave it out.")
    wanted = (entry.target,) if without_draft else entry.models
    licences = ", ".join(f"{model.repository}: {model.licence}" for model in wanted)
    _say(f"{entry.about}. Licences: {licences}")
    try:
        with _progress() as begin:
            path = fetch_pair(
                entry, pairs_folder(), draft=not without_draft, revisions=revisions, announce=_say, begin=begin
            )
    except KeyboardInterrupt:
        _say(f"Interrupted. What was downloaded is kept: `outrider models pull {name}` resumes it.")
        raise typer.Exit(130) from None
    try:
        examine(path, Console(), load=LoadOptions(device, draft_device))
    except OutriderError as error:
        raise type(error)(
            f"{name} was pulled to {path}, but does not run here. {error} "
            f"`outrider models remove {name}` frees the space."
        ) from error
    chosen = {"--device": device, "--draft-device": draft_device}
    on = "".join(f" {option} {value}" for option, value in chosen.items() if value != "CPU")
    if draft_device != "CPU" and LoadOptions(device).uses_genai:  # which takes no other device for its own choice
        on += " --engine outrider" if draft_device == "NPU" else " --speculation draft"
    typer.echo(f"Try it: outrider chat --pair {name}{on}")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="The name of a pulled pair.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a pulled pair from this machine."""
    keep_private()
    from outrider.models import pulled
    from outrider.models.pair_folder import size
    from outrider.models.room import in_words

    folder = pulled.pairs_folder()
    pulled.check_removable(name, folder)
    path = folder / name
    left = sum(found.get(name, 0) for found in (pulled.unfinished(folder), pulled.half_removed(folder)))
    taken = in_words((size(path) if path.is_dir() else 0) + left)
    if not yes and not typer.confirm(f"Delete {path} ({taken})?"):
        raise typer.Exit(1)
    pulled.remove(name, folder)
    typer.echo(f"Removed {name} ({taken}).")


def _commits(*given: tuple[str, str, str | None]) -> dict[str, str]:
    """Commits by role, from tuples of role, option and value. Raises InvalidOption."""
    from outrider.models.catalogue import is_commit

    commits = {}
    for role, option, value in given:
        if value is None:
            continue
        if not is_commit(value):
            raise InvalidOption(f"{option} {value} is not a commit: give 40 hexadecimal digits, as the hub shows them.")
        commits[role] = value
    return commits


def _listed(catalogue: Catalogue, folder: Path, pulled: dict[str, Pulled]) -> dict[str, Any]:
    from outrider.models.pulled import half_removed, unfinished

    begun = unfinished(folder)

    def state(name: str) -> dict[str, Any]:
        pair = pulled.get(name)
        return {
            "pulled": None
            if pair is None
            else {
                "path": str(pair.path), "bytes": pair.bytes, "models": dict(pair.models), "problem": pair.problem,
            },
            "unfinished_bytes": begun.get(name, 0),
        }  # fmt: skip

    others = [name for name in dict.fromkeys((*pulled, *begun)) if name not in catalogue.names]
    return {
        "folder": str(folder),
        "note": catalogue.note,
        "pairs": [
            *({**entry.as_dict(), **state(entry.name)} for entry in catalogue.entries),
            *({"name": name, **state(name)} for name in others),
        ],
        "half_removed_bytes": half_removed(folder),
        "heads": [{**asdict(head), "command": head.command} for head in catalogue.heads],
    }


def _table(catalogue: Catalogue, begun: dict[str, int], pulled: dict[str, Pulled]) -> Table:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    from outrider.models.room import in_words

    def state(name: str) -> str:
        if name in pulled:
            pair = pulled[name]
            return "cannot be used" if pair.problem else f"pulled, {in_words(pair.bytes)}"
        partly = begun.get(name)
        return f"begun, {in_words(partly)}" if partly else ""

    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), leading=1)
    table.add_column("pair", overflow="fold", min_width=max(map(len, catalogue.names)))
    for column in ("download", "memory"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("devices", "here"):
        table.add_column(column)
    for entry in catalogue.entries:
        licences = ", ".join(dict.fromkeys(model.licence for model in entry.models))
        table.add_row(
            f"[bold]{escape(entry.name)}[/]\n{escape(entry.about)}\n[dim]{escape(licences)}[/]",
            f"{'~' if entry.is_computed else ''}{in_words(entry.download_bytes)}",
            f"~{in_words(entry.memory_bytes)}",
            "\n".join(entry.devices),
            state(entry.name),
        )
    for name in pulled:
        if name not in catalogue.names:
            table.add_row(f"[bold]{escape(name)}[/]", "", "", "", state(name))
    return table


@contextmanager
def _progress() -> Iterator[Callable[[int], Callable[[int], None]]]:
    """A progress bar on standard error, or lines if that is no terminal, as a `Begin` for `pull`."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:

        def begin(total: int) -> Callable[[int], None]:
            task = bar.add_task("", total=total)
            return lambda count: bar.advance(task, count)

        yield begin


def _lines(total: int) -> Callable[[int], None]:
    from outrider.models.room import in_words

    from ..progress import rarely

    done, say = 0, rarely(_say)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        say(f"{in_words(done)} of {in_words(total)}")

    return advance


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
