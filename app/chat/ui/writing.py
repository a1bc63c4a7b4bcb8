"""Which answers are pending or being written, and for which window."""

from __future__ import annotations

import threading


class Writing:
    """Answers by the ids of their turns. Each is announced, then started or withdrawn. Thread-safe."""

    def __init__(self) -> None:
        self._visitors: dict[int, str] = {}
        self._started: set[int] = set()
        self._lock = threading.Lock()

    def announce(self, node: int, visitor: str) -> None:
        with self._lock:
            self._visitors[node] = visitor

    def start(self, node: int, visitor: str) -> bool:
        """Returns whether it may be written: not if it was withdrawn or has already started."""
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
        """Remove it, unless it has started."""
        with self._lock:
            if node not in self._started:
                self._visitors.pop(node, None)

    def withdraw_all(self, visitor: str) -> None:
        """Remove the answers of this visitor that have not started."""
        with self._lock:
            for node in [node for node, other in self._visitors.items() if other == visitor]:
                if node not in self._started:
                    del self._visitors[node]

    def visitor(self, node: int) -> str | None:
        """The visitor for whom it is pending or being written; None if it is neither."""
        with self._lock:
            return self._visitors.get(node)
