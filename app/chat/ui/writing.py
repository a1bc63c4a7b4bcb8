"""Writing: which answers are to be written, or are being written, and by which window."""

from __future__ import annotations

import threading


class Writing:
    """By turns' ids. An answer is announced when it is asked for, starts later, and may be withdrawn in between."""

    def __init__(self) -> None:
        self._visitors: dict[int, str] = {}
        self._started: set[int] = set()
        self._lock = threading.Lock()

    def announce(self, node: int, visitor: str) -> None:
        with self._lock:
            self._visitors[node] = visitor

    def start(self, node: int, visitor: str) -> bool:
        """Whether it may be written: not if it was withdrawn, or is being written."""
        with self._lock:
            may = self._visitors.get(node) == visitor and node not in self._started
            if may:
                self._started.add(node)
            return may

    def end(self, node: int) -> None:
        with self._lock:
            self._visitors.pop(node, None)
            self._started.discard(node)

    def withdraw(self, node: int) -> None:
        """Forget it, unless it has started."""
        with self._lock:
            if node not in self._started:
                self._visitors.pop(node, None)

    def withdraw_all(self, visitor: str) -> None:
        """Forget what this visitor asked for and has not started."""
        with self._lock:
            for node in [node for node, other in self._visitors.items() if other == visitor]:
                if node not in self._started:
                    del self._visitors[node]

    def visitor(self, node: int) -> str | None:
        """Who asked for it; None where it has ended, or nobody of this program did."""
        with self._lock:
            return self._visitors.get(node)
