"""Driver: uses the desktop program's window as a person does."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable
from typing import Any

from outrider.app import desktop

PATIENCE_S = 120


class Driver:
    """Runs the window's loop until something is seen."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self.root = tk.Tk()
        self.model = desktop.Model(load)
        self.window = desktop.Window(self.root, self.model, "test")
        self.closed = False
        self.root.bind("<Destroy>", lambda event: setattr(self, "closed", True))
        self.model.start()

    def until(self, seen: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not seen():
            assert time.monotonic() < deadline, self.status
            self.root.update()
            time.sleep(0.005)

    @property
    def status(self) -> str:
        return str(self.window.status.get())

    @property
    def text(self) -> str:
        return str(self.window.text.get("1.0", "end-1c"))

    def can(self, button: Any) -> bool:
        return bool(button.instate(["!disabled"]))

    def ready(self) -> None:
        self.until(lambda: self.can(self.window.send))

    def type(self, text: str) -> None:
        """Press the keys."""
        self.window.prompt.focus_force()
        self.root.update()
        names = {" ": "space", "\n": "Return", "(": "parenleft", ")": "parenright", ":": "colon", "*": "asterisk",
                 ",": "comma"}  # fmt: skip
        for character in text:
            self.window.prompt.event_generate(f"<KeyPress-{names.get(character, character)}>")

    def press(self, keys: str) -> None:
        self.window.prompt.focus_force()
        self.root.update()
        self.window.prompt.event_generate(keys)

    def click(self, button: Any) -> None:
        self.root.update()
        for event in ("<Enter>", "<ButtonPress-1>", "<ButtonRelease-1>"):
            button.event_generate(event, x=5, y=5)
        self.root.update()

    def leave(self) -> None:
        """Close the window as its frame does."""
        self.root.tk.call(*self.root.tk.splitlist(self.root.protocol("WM_DELETE_WINDOW")))

    def end(self) -> None:
        if not self.closed:
            self.leave()
            deadline = time.monotonic() + PATIENCE_S
            while not self.closed and time.monotonic() < deadline:
                self.root.update()
                time.sleep(0.005)
        self.model.join(PATIENCE_S)
        assert not self.model.is_alive()
