"""FairLock: a lock that a busy thread cannot keep to itself."""

from __future__ import annotations

from threading import RLock


class FairLock:
    """A reentrant lock. Who lets go of it does not get it again before somebody who waits for it.

    Python's own locks go to whoever asks first once they are free, and that is almost always the thread that has just
    let go and asks again, as one does that runs pass after pass. Here everybody passes a turnstile first, and who waits
    for the lock stands in it.
    """

    def __init__(self) -> None:
        self._turnstile = RLock()
        self._lock = RLock()

    def __enter__(self) -> FairLock:
        # Who holds the lock must not wait in the turnstile. A stream that is dropped can ask for it at any moment, also
        # between two lines of this file, so nothing that is noted here could tell as surely as the lock itself.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            self._lock.acquire()
        else:
            with self._turnstile:
                self._lock.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
