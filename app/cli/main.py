"""The `outrider` command."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from outrider.models.pulled import find_pair
from outrider.pipelines.errors import InvalidOption, OutriderError
from outrider.pipelines.privacy import keep_private, without_proxies

from ..load_options import LoadOptions, properties_of
from .models import app as models_app
from .options import (
    LOCAL,
    Acceptance,
    AllowedHost,
    CacheTokens,
    Device,
    DraftDevice,
    Engine,
    Exact,
    Fallback,
    Head,
    KeyFile,
    Mode,
    PairFolder,
    Port,
    Property,
    Reference,
    Speculation,
    TlsCert,
    TlsKey,
)

app = typer.Typer(
    name="outrider",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # its boxes cut the names of long options
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(models_app, name="models")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outrider {version('outrider')}")
        raise typer.Exit


@app.callback()
def outrider(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Speculative decoding on OpenVINO that never changes a token."""


@app.command()
def chat(
    pair: PairFolder = None,
    device: Device = "CPU",
    draft_device: DraftDevice = "CPU",
    engine: Engine = None,
    speculation: Speculation = None,
    fallback: Fallback = None,
    openvino_property: Property = None,
    head: Head = None,
    cache_tokens: CacheTokens = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but a loopback address requires a key.")] = LOCAL,
    port: Port = 7860,
    api_key_file: KeyFile = None,
    allowed_host: AllowedHost = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
    reference: Reference = None,
    exact: Exact = None,
    pairs: Annotated[
        Path | None,
        typer.Option(help="Folder of the pairs to choose from on the page.", show_default="the pulled pairs"),
    ] = None,
) -> None:
    """Chat in the browser. Nothing leaves this machine."""
    keep_private()
    with without_proxies():
        from ..chat.launch import serve
    from ..server.access import read_keys
    from ..server.tls import certificate_of

    keys, certificate = read_keys(api_key_file), certificate_of(tls_cert, tls_key)
    names = tuple(allowed_host or ())
    pair = pair or _embedded_pair()
    load = _load_options(
        device, draft_device, engine, speculation, fallback, exact, reference, openvino_property, head, cache_tokens
    )
    serve(pair, load, host, port, open_browser, pairs, keys, names, certificate)


@app.command()
def serve(
    pair: PairFolder = None,
    device: Device = "CPU",
    draft_device: DraftDevice = "CPU",
    engine: Engine = None,
    speculation: Speculation = None,
    fallback: Fallback = None,
    openvino_property: Property = None,
    head: Head = None,
    cache_tokens: CacheTokens = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but a loopback address requires a key.")] = LOCAL,
    port: Port = 8000,
    api_key_file: KeyFile = None,
    allowed_host: AllowedHost = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of web pages that may send requests, or *; can be repeated.")
    ] = None,
    reference: Reference = None,
    exact: Exact = None,
    max_answers: Annotated[int, typer.Option(help="Most answers that may be queued or running.", min=1)] = 256,
    max_connections: Annotated[int, typer.Option(help="Most open connections.", min=1)] = 512,
    max_body_mib: Annotated[int, typer.Option(help="Size limit of a request body, in MiB.", min=1)] = 8,
    request_seconds: Annotated[float, typer.Option(help="Time limit of a request, in seconds.", min=1)] = 600,
) -> None:
    """Serve OpenAI's API to programs on this machine."""
    keep_private()
    from ..server.access import Access, read_keys
    from ..server.limits import MIB, Limits
    from ..server.serve import serve as run_server
    from ..server.tls import certificate_of

    certificate = certificate_of(tls_cert, tls_key)
    scheme = "http" if certificate is None else "https"
    access = Access(host, read_keys(api_key_file), tuple(cors_origin or ()), tuple(allowed_host or ()), scheme)
    limits = Limits(max_answers, max_body_mib * MIB, max_connections, request_s=request_seconds)
    load = _load_options(
        device, draft_device, engine, speculation, fallback, exact, reference, openvino_property, head, cache_tokens
    )
    run_server(pair or _embedded_pair(), load, access, port, limits, certificate)


@app.command()
def generate(
    prompt: str,
    pair: PairFolder = None,
    device: Device = "CPU",
    draft_device: DraftDevice = "CPU",
    engine: Engine = None,
    speculation: Speculation = None,
    fallback: Fallback = None,
    openvino_property: Property = None,
    head: Head = None,
    cache_tokens: CacheTokens = None,
    mode: Mode = "auto",
    acceptance: Acceptance = "exact",
    seed: Annotated[int, typer.Option(help="Seed for sampling.", min=0)] = 0,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 decodes greedily.", min=0.0)] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens to generate.", min=1)] = 512,
    reference: Reference = None,
    exact: Exact = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the text and statistics as one JSON object.")] = False,
) -> None:
    """Answer one prompt and print the answer as it is generated. Use - as PROMPT to read it from standard input."""
    keep_private()
    prompt = _text_of(prompt)
    load = _load_options(
        device, draft_device, engine, speculation, fallback, exact, reference, openvino_property, head, cache_tokens
    )
    pipeline = load.load(pair or _embedded_pair())
    options: dict[str, Any] = {
        "mode": mode,
        "acceptance": acceptance,
        "rng_seed": seed,
        "do_sample": temperature > 0,
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
    }
    if as_json:
        answer = pipeline.generate(prompt, **options).generations[0]
        result = {
            "text": answer.text,
            "token_ids": list(answer.token_ids),
            "finish_reason": answer.finish_reason,
            "stats": answer.stats.as_dict(),
            "lossy": answer.lossy,
        }
        typer.echo(json.dumps(result))
        return
    for piece in pipeline.stream(prompt, **options):
        typer.echo(piece.text, nl=False)
    typer.echo()


@app.command()
def doctor(
    pair: Annotated[
        Path | None,
        typer.Argument(parser=find_pair, metavar="[PAIR]", show_default="the pair that comes with Outrider"),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat measurements that were stored earlier.")] = False,
    exact: Exact = None,
    device: Device = "CPU",
    draft_device: DraftDevice = "CPU",
    engine: Engine = None,
    speculation: Speculation = None,
    fallback: Fallback = None,
    openvino_property: Property = None,
    head: Head = None,
    cache_tokens: CacheTokens = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the findings to this file, with versions and devices, for an issue.")
    ] = None,
) -> None:
    """Check a pair on this machine and measure its speed. PAIR is its name or its folder."""
    keep_private()
    from rich.console import Console

    from ..writable import require_writable
    from .doctor import examine
    from .issue_report import REPORT, write_report

    load = _load_options(
        device, draft_device, engine, speculation, fallback, exact, None, openvino_property, head, cache_tokens
    )
    if report is not None:
        require_writable(report, REPORT)
    console = Console(record=report is not None)
    folder, is_sound, failure = pair or _embedded_pair(), False, None
    try:
        is_sound = examine(folder, console, again, load)
    except Exception as error:  # of which a report is worth most
        failure = error
    if report is not None:
        write_report(report, load, folder, console.export_text(), failure)
        console.print(f"The report is in {report}.")
    if failure is not None:
        raise failure
    if not is_sound:
        raise typer.Exit(1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Benchmark every mode of a pair against plain decoding."""
    from ..bench.bench import main as run_bench

    run_bench(context.args)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def export(context: typer.Context) -> None:
    """Export a target and a draft model as a pair."""
    from outrider.export.command import main as run_export

    run_export(context.args)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def distill(context: typer.Context) -> None:
    """Train a draft model or a head for a target on the target's own answers."""
    from outrider.export.distill_command import main as run_distill

    run_distill(context.args)


def _load_options(
    device: str,
    draft_device: str,
    engine: str | None,
    speculation: str | None,
    fallback: str | None,
    exact: bool | None,
    reference: Path | None,
    properties: list[str] | None,
    head: Path | None,
    cache_tokens: int | None,
) -> LoadOptions:
    given = properties_of(properties or ())
    return LoadOptions(device, draft_device, engine, speculation, fallback, exact, reference, given, head, cache_tokens)


def _text_of(prompt: str) -> str:
    """The prompt, or what standard input has if it is "-". Raises InvalidOption."""
    try:
        text = sys.stdin.read() if prompt == "-" else prompt
        text.encode()  # bytes that are no text became half characters
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise InvalidOption(f"PROMPT is not text in UTF-8 ({error.reason}): convert it first.") from error
    return text


def _embedded_pair() -> Path:
    from outrider.models import embedded_pair

    return embedded_pair()


def _write_everything(stream: TextIO) -> None:
    """Have a stream take every character, where Windows gives files and pipes an encoding of few."""
    if not isinstance(stream, io.TextIOWrapper):
        return
    stream.reconfigure(errors="replace")
    if not stream.isatty() and "PYTHONIOENCODING" not in os.environ:
        stream.reconfigure(encoding="utf-8")


@contextmanager
def _written_out() -> Iterator[None]:
    """Within the block, standard output that cannot be written ends the program with exit code 1."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EPIPE):
            raise
        if error.errno != errno.EPIPE:  # the reader has read enough
            print(f"outrider: Nothing more can be written ({error.strerror}): make room.", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would fail again when it ends
        sys.exit(1)


def main() -> None:
    """Run the command. An OutriderError becomes one line on standard error and exit code 2; an interrupt gives 130."""
    for stream in (sys.stdout, sys.stderr):
        _write_everything(stream)
    try:
        with _written_out():
            app()
    except OutriderError as error:
        print(f"outrider: {error}", file=sys.stderr)
        sys.exit(2)
