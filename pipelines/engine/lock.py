"""FairLock: a lock that threads take in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import RLock


class FairLock:
    """A reentrant lock. A thread that releases it cannot take it again before a thread that is waiting for it.

    Python's own locks go to whichever thread asks first once they are free. That is almost always the thread that has
    just released the lock, since a thread that runs pass after pass asks again at once. So a second lock, the
    turnstile, has to be taken first, and a thread holds it while it waits.
    """

    def __init__(self) -> None:
        self._turnstile = RLock()
        self._lock = RLock()
        self._deferred: deque[Callable[[], None]] = deque()

    def __enter__(self) -> FairLock:
        # The owner must not wait for the turnstile. Only the lock itself knows its owner reliably: a garbage collection
        # between any two lines here can drop a stream, which then enters this method in the same thread.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            self._lock.acquire()
        else:
            try:
                with self._turnstile:
                    self._lock.acquire()
            except BaseException:  # KeyboardInterrupt often comes when the wait is over, and `__exit__` will not be run
                if self._lock._is_owned():  # type: ignore[attr-defined]
                    self._lock.release()
                raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
        if self._deferred:
            self._run_deferred()

    def when_free(self, action: Callable[[], None]) -> None:
        """Run something under the lock: at once if that needs no waiting; otherwise its holder runs it on release.

        For destructors, which run in any thread, even in one that the owner of the lock waits for.
        """
        self._deferred.append(action)
        self._run_deferred()

    def _run_deferred(self) -> None:
        while self._deferred and self._lock.acquire(blocking=False):
            try:
                while self._deferred:
                    self._deferred.popleft()()
            finally:
                self._lock.release()
