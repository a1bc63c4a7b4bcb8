"""Serve the chat page."""

from __future__ import annotations

import logging
import signal
import socket
import time
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from outrider.models.pulled import pairs_folder
from outrider.pipelines import InvalidOption, LLMPipeline, OutriderError, Pair
from outrider.pipelines.devices.devices import CPU
from outrider.pipelines.model.pair import name_of
from outrider.pipelines.privacy import without_proxies

from ..load_options import LoadOptions
from ..server.access import Access
from ..server.address import url_of
from ..server.limits import Limits
from ..server.tls import Certificate
from .assistant import Assistant
from .i18n.translations import TRANSLATIONS
from .store.database import history_path
from .store.history import History
from .ui import Page
from .ui.served import GatedApp, bounded_connections
from .ui.theme import HEAD, STYLE_SHEET, theme
from .ui.uploads import UploadLimits, Uploads, upload_folder

log = logging.getLogger(__name__)


class AddressTaken(OutriderError):
    """The page cannot listen on its host and port."""


def serve(
    pair: Path,
    load: LoadOptions,
    host: str = "127.0.0.1",
    port: int = 7860,
    open_browser: bool = False,
    pairs: Path | None = None,
    keys: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    certificate: Certificate | None = None,
) -> None:
    """Load the pair and serve its page until interrupted or told to end (SIGTERM, SIGHUP). The pairs in the folder
    `pairs` can be chosen on the page.

    Raises AddressTaken, UnsafeServer, InvalidOption if `pairs` is not a folder, and the errors of LLMPipeline.
    """
    access = _access(host, keys, names, certificate)
    _check_address(host, port)
    if pairs is not None and not pairs.is_dir():
        raise InvalidOption(f"There is no folder {pairs} to take pairs from: give one that contains pairs.")
    others = pairs or pairs_folder()

    def loaded(path: Path, device: str) -> LLMPipeline:
        fitting = load.on(device) if path == pair else for_another(path, load, device)
        return fitting.load(path)

    with Console(stderr=True).status(escape(f"Loading {name_of(pair)} on {load.device}")):
        pipeline = load.load(pair)
    assistant, page = Assistant(pipeline, name_of(pair), loaded, others, (pair,)), None
    history = History(history_path())
    _on_signals_that_end(_interrupt)
    try:
        page = open_page(assistant, history, host, port, open_browser, keys, names, certificate)
        print(f"Outrider is at {url_of(host, port, access.scheme)} (Ctrl-C ends it)", flush=True)
        while True:
            time.sleep(3600)  # Gradio's own way to wait prints a message on the interrupt
    except KeyboardInterrupt:
        print()
    except OSError:
        _check_address(host, port)  # another program may have taken it while the model was loaded
        raise
    finally:
        _on_signals_that_end(signal.SIG_IGN)  # a second one would not wait for the running pass
        assistant.close()
        if page is not None:
            page.blocks.close(verbose=False)
        history.close()


def for_another(pair: Path, load: LoadOptions, device: str) -> LoadOptions:
    """The options for a pair other than the one that they were given for, without what it lacks, which is logged: who
    chooses it on the page could not leave that out. Raises what `Pair.open` raises."""
    fitting = replace(load, head=None).on(device)  # a head is one of the pair that it was given for
    if Pair.open(pair).draft is not None:
        return fitting
    speculation = None if fitting.speculation == "draft" else fitting.speculation
    without = replace(fitting.drafting_on(CPU), speculation=speculation)
    if without != fitting:
        log.warning("%s has no draft model, so it is loaded without what was given for one.", pair)
    return without


def _interrupt(number: int, frame: object) -> None:
    """So that no uploaded files are left behind and no pass is broken off."""
    raise KeyboardInterrupt


def _on_signals_that_end(handler: Callable[[int, object], None] | signal.Handlers) -> None:
    """Have another handler for the signals that end this process."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks for
            signal.signal(number, handler)


def open_page(
    assistant: Assistant,
    history: History,
    host: str,
    port: int,
    open_browser: bool = False,
    keys: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    certificate: Certificate | None = None,
    limits: UploadLimits | None = None,
    connections: Limits | None = None,
) -> Page:
    """Start to serve an assistant's page in the background, and warm up the model in parallel.

    keys, names: see `Access`. With keys, the page asks for one.
    connections: how many there may be, and how long they may last.
    Raises UnsafeServer if `host` admits other machines and there is no key.
    """
    access = _access(host, keys, names, certificate)
    uploads = Uploads(upload_folder(), limits or UploadLimits())
    page = Page(assistant, history)
    with bounded_connections(connections or Limits()), without_proxies():
        page.blocks.launch(
            _app=GatedApp(access, uploads),
            server_name=f"[{host}]" if ":" in host else host,
            server_port=port,
            ssl_certfile=None if certificate is None else str(certificate.chain),
            ssl_keyfile=None if certificate is None else str(certificate.key),
            ssl_verify=False,  # of the request that Gradio sends to itself: the certificate need not name this address
            max_file_size=uploads.limits.one,
            num_workers=0,  # they would listen on their own ports, without the gate
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            enable_monitoring=False,
            run_history=False,
            footer_links=[],
            theme=theme(),
            css_paths=STYLE_SHEET,
            head=HEAD,
            i18n=TRANSLATIONS,
        )
    assistant.warm_up_in_background()
    if open_browser:  # not by Gradio, or the browser would begin without its proxies
        webbrowser.open(page.blocks.local_url)
    return page


def _access(host: str, keys: tuple[str, ...], names: tuple[str, ...], certificate: Certificate | None) -> Access:
    return Access(host, keys, names=names, scheme="http" if certificate is None else "https")


def _check_address(host: str, port: int) -> None:
    """Raises AddressTaken before the model is loaded; Gradio would notice only afterwards."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise AddressTaken(
                f"The page cannot listen on {host}:{port} ({error.strerror}): stop what uses it, "
                f"or choose another port, such as --port {port + 1 if port < 65535 else port - 1}."
            ) from error
