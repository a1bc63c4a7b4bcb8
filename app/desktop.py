"""A chat window in one file: it loads a pair in the background, streams and stops answers, and shows the speed.

    python -m outrider.app.desktop [PAIR]

The model runs in its own thread, which puts events into a queue; the window's main loop polls the queue. So Tk is
called from one thread only, and the model never waits for the screen.
"""

from __future__ import annotations

import argparse
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from outrider.models import embedded_pair
from outrider.models.pulled import find_pair
from outrider.pipelines import CacheTooSmall, LLMPipeline, OutriderError, PromptTooLong, Statistics
from outrider.pipelines.privacy import keep_private

try:
    import tkinter as tk
    from tkinter import ttk
except ImportError as error:
    raise SystemExit(
        f"outrider: This Python has no tkinter ({error}), which the window needs. Install it (Debian, Ubuntu: "
        "apt install python3-tk; macOS with Homebrew: brew install python-tk), or use `outrider chat`."
    ) from error

POLL_MS = 30
MAX_NEW_TOKENS = 1024
FULL = "This conversation is full: begin a new one (Ctrl+N)."


@dataclass(frozen=True, slots=True)
class Began:
    """A step of the start-up has begun."""

    step: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The model accepts prompts."""


@dataclass(frozen=True, slots=True)
class Wrote:
    """The next piece of the answer, and the tokens per second so far; None while they are unknown."""

    text: str
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer is complete."""

    reason: str
    stats: Statistics


@dataclass(frozen=True, slots=True)
class Refused:
    """A prompt that could not be answered."""

    prompt: str
    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The model did not start."""

    message: str


Event: TypeAlias = Began | Ready | Wrote | Answered | Refused | Failed


class Model(threading.Thread):
    """Loads a pipeline and answers prompts one at a time. Reports to the queue `events`."""

    def __init__(self, load: Callable[[], LLMPipeline]) -> None:
        super().__init__(name="model")
        self.events: queue.Queue[Event] = queue.Queue()
        self._load = load
        self._prompts: queue.Queue[str | None] = queue.Queue()
        self._renewed = threading.Event()
        self._renewed.set()
        self._stopped = threading.Event()
        self._closed = threading.Event()

    def renew(self) -> None:
        """Begin a new chat with the next prompt."""
        self._renewed.set()

    def ask(self, prompt: str) -> None:
        self._stopped.clear()
        self._prompts.put(prompt)

    def stop(self) -> None:
        """End the running answer early."""
        self._stopped.set()

    def close(self) -> None:
        """End the thread after its current pass."""
        self._closed.set()
        self._stopped.set()
        self._prompts.put(None)

    def run(self) -> None:
        try:
            self.events.put(Began("Loading the models"))
            pipeline = self._load()
            if not self._closed.is_set():
                self.events.put(Began("Warming up; the first time, this machine is measured too"))
                pipeline.warm_up()
        except Exception as error:  # the window must show it, whatever it is
            self.events.put(Failed(str(error)))
            return
        self.events.put(Ready())
        chats = pipeline.tokenizer.has_chat_template
        continued = False  # whether the next prompt continues a chat
        while (prompt := self._prompts.get()) is not None:
            try:
                if chats and self._renewed.is_set():
                    self._renewed.clear()
                    pipeline.start_chat()
                    continued = False
                self._answer(pipeline, prompt)
                continued = chats
            except Exception as error:  # the next prompt may succeed
                full = continued and isinstance(error, PromptTooLong | CacheTooSmall)
                self.events.put(Refused(prompt, FULL if full else str(error)))

    def _answer(self, pipeline: LLMPipeline, prompt: str) -> None:
        num_tokens, first = 0, 0.0
        with pipeline.stream(prompt, max_new_tokens=MAX_NEW_TOKENS) as pieces:
            while not pieces.ended:
                piece = pieces.advance()  # one pass; None where it gave no text, as while the prompt is read
                if self._stopped.is_set():
                    pieces.cancel()  # one more piece comes: the last
                if piece is None:
                    continue
                now = time.perf_counter()
                rate = num_tokens / (now - first) if first else None  # tokens since the first piece
                num_tokens += len(piece.token_ids) if first else 0
                first = first or now
                self.events.put(Wrote(piece.text, rate))
                if piece.stats is not None and piece.finish_reason is not None:
                    self.events.put(Answered(piece.finish_reason, piece.stats))


class Window:
    """The window. All its methods run in the thread of Tk's main loop."""

    def __init__(self, root: tk.Tk, model: Model, title: str) -> None:
        self.root = root
        self.model = model
        self.interrupted = False
        self._closing = False
        root.title(title)
        root.minsize(480, 320)
        root.protocol("WM_DELETE_WINDOW", self.close)
        root.columnconfigure(0, weight=1)
        root.rowconfigure(0, weight=1)
        if root.tk.call("tk", "windowingsystem") == "x11":
            ttk.Style(root).theme_use("clam")  # the default theme there looks dated
        frame = ttk.Frame(root, padding=8)
        frame.grid(sticky="nsew")
        frame.columnconfigure(0, weight=1)
        frame.rowconfigure(0, weight=1)

        upper = ttk.Frame(frame)
        upper.grid(row=0, column=0, columnspan=2, sticky="nsew", pady=(0, 8))
        upper.columnconfigure(0, weight=1)
        upper.rowconfigure(0, weight=1)
        self.text = tk.Text(upper, wrap="word", state="disabled", font="TkFixedFont", padx=8, pady=8)
        self.text.tag_configure("prompt", foreground="#1a5fb4")
        self.text.tag_configure("chat", foreground="#77767b", justify="center")
        self.text.tag_configure("error", foreground="#c01c28")
        scroll = ttk.Scrollbar(upper, command=self.text.yview)
        self.text.configure(yscrollcommand=scroll.set)
        self.text.grid(row=0, column=0, sticky="nsew")
        scroll.grid(row=0, column=1, sticky="ns")

        self.prompt = tk.Text(frame, height=4, wrap="word", font="TkFixedFont", padx=8, pady=8)
        self.prompt.bind("<Control-Return>", self._send)
        self.prompt.grid(row=1, column=0, rowspan=3, sticky="nsew", pady=(0, 8))
        self.send = ttk.Button(frame, text="Send (Ctrl+Enter)", command=self._send, state="disabled")
        self.send.grid(row=1, column=1, sticky="ew", padx=(8, 0))
        self.stop = ttk.Button(frame, text="Stop (Esc)", command=model.stop, state="disabled")
        self.stop.grid(row=2, column=1, sticky="ew", padx=(8, 0))
        root.bind("<Escape>", lambda event: model.stop())
        self.new = ttk.Button(frame, text="New chat (Ctrl+N)", command=self._renew, state="disabled")
        self.new.grid(row=3, column=1, sticky="ew", padx=(8, 0), pady=(0, 8))
        for widget in (root, self.prompt):
            widget.bind("<Control-n>", self._renew)

        self.status = tk.StringVar()
        ttk.Label(frame, textvariable=self.status).grid(row=4, column=0, sticky="w")
        self.progress = ttk.Progressbar(frame, mode="indeterminate")
        self.progress.grid(row=4, column=1, sticky="ew", padx=(8, 0))
        self.progress.start()
        self.prompt.focus_set()
        self._poll()

    def close(self) -> None:
        """Stop the running answer, and close once the model's thread has ended."""
        self._closing = True
        self.root.withdraw()
        self.model.close()

    def interrupt(self, *_: object) -> None:
        """Close at the next poll. For Ctrl-C in the terminal, as Tk only prints an exception raised in a callback."""
        self.interrupted = True

    def _renew(self, event: object = None) -> str:
        if self.new.instate(["!disabled"]):
            self.model.renew()
            self._write("New chat\n\n", "chat")
            self.status.set("Ready")
        return "break"  # or the key would move the cursor

    def _send(self, event: object = None) -> str:
        prompt = self.prompt.get("1.0", "end").rstrip()  # its first line may be indented code
        if prompt and self.send.instate(["!disabled"]):
            self.prompt.delete("1.0", "end")
            self._write(f"{prompt}\n\n", "prompt")
            self._set_busy(True)
            self.status.set("Reading the prompt")
            self.model.ask(prompt)
        return "break"  # or the key would insert a line break

    def _poll(self) -> None:
        while not self.model.events.empty():
            self._show(self.model.events.get())
        if self.interrupted and not self._closing:
            self.close()
        if self._closing and not self.model.is_alive():
            self.root.destroy()
            return
        self.root.after(POLL_MS, self._poll)

    def _show(self, event: Event) -> None:
        if isinstance(event, Began):
            self.status.set(event.step)
        elif isinstance(event, Ready):
            self.status.set("Ready")
            self._set_busy(False)
        elif isinstance(event, Wrote):
            self._write(event.text)
            if event.tokens_per_s is not None:
                self.status.set(f"{event.tokens_per_s:.1f} tokens per second")
        elif isinstance(event, Answered):
            self._write("\n\n")
            self.status.set(_summary(event))
            self._set_busy(False)
        elif isinstance(event, Refused):
            self._write(f"{event.message}\n\n", "error")
            typed = self.prompt.get("1.0", "end-1c")  # since then
            self.prompt.insert("1.0", f"{event.prompt}\n" if typed else event.prompt)
            self.status.set("Ready")
            self._set_busy(False)
        else:
            self._write(f"{event.message}\n", "error")
            self.status.set("The model did not start")
            self._rest()

    def _set_busy(self, busy: bool) -> None:
        for button in (self.send, self.new):
            button.state(["disabled" if busy else "!disabled"])
        self.stop.state(["!disabled" if busy else "disabled"])
        if busy:
            self.progress.grid()
            self.progress.start()
        else:
            self._rest()

    def _rest(self) -> None:
        self.progress.stop()
        self.progress.grid_remove()

    def _write(self, text: str, tag: str = "") -> None:
        at_end = self.text.yview()[1] >= 1
        self.text.configure(state="normal")
        self.text.insert("end", text, tag)
        self.text.configure(state="disabled")
        if at_end:  # keeps the position of a user who scrolled up
            self.text.see("end")


def _summary(answer: Answered) -> str:
    stats = answer.stats
    rate = "" if stats.tokens_per_s is None else f", {stats.tokens_per_s:.1f} per second"
    drafted = f", {stats.accepted} of {stats.drafted} drafted tokens kept" if stats.drafted else ""
    stopped = ", stopped" if answer.reason == "cancelled" else ""
    return f"{stats.new_tokens} tokens{rate}{drafted}{stopped}"


def main() -> None:
    """Open the window and run until it is closed."""
    keep_private()
    parser = argparse.ArgumentParser(prog="outrider-desktop", description="Chat with a pair in a window.")
    parser.add_argument("pair", nargs="?", help="a pulled pair's name, or a folder (default: the embedded pair)")
    arguments = parser.parse_args()
    try:
        pair = embedded_pair() if arguments.pair is None else find_pair(arguments.pair)
        root = tk.Tk()
    except OutriderError as error:
        sys.exit(f"outrider: {error}")
    except tk.TclError as error:
        sys.exit(f"outrider: No window can be opened here ({error}): start it on a desktop.")
    model = Model(lambda: LLMPipeline(pair))
    window = Window(root, model, f"Outrider: {arguments.pair or 'pyscout'}")
    signal.signal(signal.SIGINT, window.interrupt)
    model.start()
    try:
        root.mainloop()
    finally:  # a process must not exit in the middle of a pass
        model.close()
        model.join()
    if window.interrupted:
        sys.exit(130)


if __name__ == "__main__":
    main()
