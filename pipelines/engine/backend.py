"""Backend: what runs the requests of a pipeline."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass

from ..errors import CacheTooSmall, PromptTooLong
from .block_pool import BlockPool
from .lock import FairLock
from .request import CANCELLED, Request


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a backend is.

    waiting, running: numbers of requests.
    cache_used: the share of the cache's blocks held by running requests; None if unknown.
    passes: of the target since it was loaded, warm-up included.
    """

    waiting: int
    running: int
    cache_used: float | None
    passes: int


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens a request can have.

    tokens: the most of its prompt and answer together.
    remedy: what the user can change to allow more; "{tokens}" stands for the number that is needed.
    prompt_tokens: the most of its prompt.
    """

    tokens: int
    remedy: str
    prompt_tokens: float = math.inf

    @classmethod
    def of(cls, pool: BlockPool) -> Room:
        """The room of a cache on the CPU."""
        return cls(pool.num_tokens, "cache_tokens={tokens} or more")

    def require(self, request: Request) -> None:
        """Raises PromptTooLong or CacheTooSmall if a request does not fit."""
        prompt, new, tokens = request.num_prompt_tokens, request.max_new_tokens, request.num_slots
        remedy = self.remedy.format(tokens=tokens)
        if prompt > self.prompt_tokens:
            raise PromptTooLong(
                f"The prompt has {prompt} tokens and this device was prepared for {self.prompt_tokens}: shorten the "
                f"prompt, or load the pair with {remedy}."
            )
        if tokens > self.tokens:
            raise CacheTooSmall(
                f"The request needs a cache of {tokens} tokens ({prompt} of the prompt and up to {new} new ones), and "
                f"the cache holds {self.tokens}: lower max_new_tokens, shorten the prompt, or load the pair with "
                f"{remedy}."
            )


class Backend(ABC):
    """What runs requests: `Engine`, `GenaiEngine` on GPUs, or `Fallback`, which can move them from these to the CPU.

    Any thread that waits for a request calls `step` until it has finished; calls from several threads take turns, and
    each serves all requests. So the state of a request must be read under the `lock`.

    is_changing: whether another device is taking over, which makes the current step a long one.
    """

    lock: FairLock
    is_changing = False

    @abstractmethod
    def add(self, request: Request) -> None:
        """Queue a request. Raises CacheTooSmall or another error if it could not run even alone."""

    @abstractmethod
    def cancel(self, request: Request) -> None:
        """End a request and free its blocks, at once or after the current step. A finished request is left as it is."""

    def abandon(self, request: Request) -> None:
        """Cancel a request for which nobody waits any more, without waiting for the lock."""
        self.lock.when_free(lambda: self.cancel(request))

    @property
    @abstractmethod
    def load(self) -> Load:
        """How busy it is, without waiting for the current pass."""

    @abstractmethod
    def step(self) -> None:
        """Advance the running requests by a pass."""

    def settle(self) -> None:  # noqa: B027
        """Let requests that have failed continue elsewhere, if they can; called before their errors are reported."""


class QueueingBackend(Backend):
    """A backend with a queue of its own."""

    def __init__(self) -> None:
        self._arrived: deque[Request] = deque()  # so that adding a request does not wait for the current pass
        self._waiting: deque[Request] = deque()
        self._num_passes = 0
        self.lock = FairLock()

    def add(self, request: Request) -> None:
        self._check(request)
        self._arrived.append(request)

    def cancel(self, request: Request) -> None:
        with self.lock:
            if not request.finished:
                self._queue_arrived()
                request.finish_reason = CANCELLED
                self._retire(request)

    @abstractmethod
    def _check(self, request: Request) -> None:
        """Raise if a request could not even run alone."""

    @abstractmethod
    def _retire(self, request: Request) -> None:
        """Remove a request that has ended from the queue or from the running ones."""

    def _queue_arrived(self) -> None:
        while self._arrived:
            self._waiting.append(self._arrived.popleft())
