"""How often a key may be guessed."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from outrider.pipelines import OutriderError

MOST_WRONG = 10  # keys of one peer within WITHIN_S; after that, it may try one each EVERY_S
WITHIN_S = 60.0
EVERY_S = 1.0
MOST_PEERS = 10_000


class TooManyGuesses(OutriderError):
    """A key that was not compared, since its peer has sent many wrong ones. `wait_s` is when it may try again."""

    def __init__(self, wait_s: float) -> None:
        super().__init__("Too many wrong keys came from this address: wait a second.")
        self.wait_s = wait_s

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(math.ceil(self.wait_s))}


class Guesses:
    """The times of wrong keys, by peer; those of the peers that were wrong longest ago are forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def check(self, peer: str) -> None:
        """Call it right before a key is compared. Raises TooManyGuesses."""
        now = self._clock()
        recent = self._recent(peer, now)
        if len(recent) >= MOST_WRONG and (wait_s := recent[-1] + EVERY_S - now) > 0:
            raise TooManyGuesses(wait_s)

    def note_wrong(self, peer: str) -> None:
        now = self._clock()
        self._wrong[peer] = [*self._recent(peer, now), now]
        self._wrong.move_to_end(peer)
        if len(self._wrong) > MOST_PEERS:
            self._wrong.popitem(last=False)

    def _recent(self, peer: str, now: float) -> list[float]:
        return [when for when in self._wrong.get(peer, ()) if now - when < WITHIN_S]


def peer_of(client: tuple[str, int] | None) -> str:
    """Whom guesses are counted for: an address, or of IPv6 its /64, all of which one machine may have."""
    host = client[0] if client else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
