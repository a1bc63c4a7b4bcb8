"""A fair lock: everybody gets a turn, and a thread may take it again while it holds it."""

from __future__ import annotations

import threading
import time
from threading import Thread

import pytest

from outrider.pipelines.engine.lock import FairLock


@pytest.fixture
def lock() -> FairLock:
    return FairLock()


def test_only_one_thread_is_inside(lock: FairLock):
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            with lock, lock:
                inside += 1
                most = max(most, inside)
                time.sleep(0)
                inside -= 1

    threads = [Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (inside, most) == (0, 1)


def test_a_busy_thread_lets_others_in_at_once(lock: FairLock):
    turns, ended = 0, threading.Event()

    def hog() -> None:
        nonlocal turns
        while not ended.is_set():
            with lock:
                turns += 1
                time.sleep(0.01)

    thread = Thread(target=hog)
    thread.start()
    waited = []
    for _ in range(5):
        before = turns
        with lock:
            waited.append(turns - before)
    ended.set()
    thread.join()
    assert max(waited) <= 2  # the turn that was on, and one that began before this thread came to wait


def test_an_error_inside_lets_go(lock: FairLock):
    with pytest.raises(ZeroDivisionError), lock, lock:
        raise ZeroDivisionError
    got = []
    thread = Thread(target=lambda: got.append(lock.__enter__()))
    thread.start()
    thread.join(10)
    assert got == [lock]


def test_what_waits_for_nobody_is_done_by_whoever_leaves_the_lock() -> None:
    lock, done = FairLock(), []
    lock.when_free(lambda: done.append("free"))
    assert done == ["free"]
    with lock:
        other = threading.Thread(target=lambda: lock.when_free(lambda: done.append("held")))
        other.start()
        other.join(60)
        assert done == ["free"], "another thread neither waits nor runs it"
        lock.when_free(lambda: done.append("own"))
        assert done == ["free", "held", "own"], "the owner runs at once what there is"
    with lock:
        other = threading.Thread(target=lambda: lock.when_free(lambda: done.append("left")))
        other.start()
        other.join(60)
    assert done[-1] == "left"


def test_an_interrupt_at_the_end_of_the_wait_leaves_the_lock_to_others(lock: FairLock, monkeypatch: pytest.MonkeyPatch):
    class Interrupted:
        """A lock that the interrupt hits when it has just been taken."""

        def __init__(self) -> None:
            self._lock = threading.RLock()
            self.release, self._is_owned = self._lock.release, self._lock._is_owned  # type: ignore[attr-defined]

        def acquire(self, blocking: bool = True) -> bool:
            self._lock.acquire(blocking)
            raise KeyboardInterrupt

    inner = Interrupted()
    with monkeypatch.context() as patch:
        patch.setattr(lock, "_lock", inner)
        with pytest.raises(KeyboardInterrupt), lock:
            pass
    taken = []
    thread = Thread(target=lambda: taken.append(inner._lock.acquire(timeout=10)))
    thread.start()
    thread.join()
    assert taken == [True]
