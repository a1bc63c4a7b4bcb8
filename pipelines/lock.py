"""FairLock: a lock that a busy thread cannot keep to itself."""

from __future__ import annotations

from threading import RLock, get_ident


class FairLock:
    """A reentrant lock. Who lets go of it does not get it again before somebody who waits for it.

    Python's own locks go to whoever asks first once they are free, and that is almost always the thread that has just
    let go and asks again, as one does that runs pass after pass. Here everybody passes a turnstile first, and who waits
    for the lock stands in it.
    """

    def __init__(self) -> None:
        self._turnstile = RLock()
        self._lock = RLock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> FairLock:
        if self._owner == get_ident():  # who holds the lock must not wait in the turnstile
            self._lock.acquire()
        else:
            with self._turnstile:
                self._lock.acquire()
        self._owner = get_ident()
        self._depth += 1
        return self

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
        self._lock.release()
