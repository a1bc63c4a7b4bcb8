"""Keys cannot be guessed quickly, and clients that have one, or a cookie, notice nothing."""

from __future__ import annotations

import pytest

from outrider.app.server import guesses
from outrider.app.server.access import Access
from outrider.app.server.guesses import MOST_PEERS, MOST_WRONG, Guesses, TooManyGuesses, peer_of
from outrider.pipelines import LLMPipeline

from .serving import LOCAL, running

KEY = "0123456789abcdef"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def access(clock: Clock) -> Access:
    return Access(LOCAL, (KEY,), guesses=Guesses(clock))


def guess(access: Access, key: str = "wrong", peer: str = "192.0.2.1") -> bool:
    return access.has_key(key.encode(), peer)


def test_after_ten_wrong_keys_within_a_minute_one_a_second_is_compared(clock: Clock) -> None:
    there = access(clock)
    for _ in range(MOST_WRONG):
        assert not guess(there)
    for _ in range(120):
        with pytest.raises(TooManyGuesses) as refused:
            guess(there, KEY)  # whether it is right is not told either
        assert refused.value.headers == {"Retry-After": "1"}
        clock.now += 1.0
        assert not guess(there)
    clock.now += 1.0
    assert guess(there, KEY)
    assert guess(there, KEY), "right keys have no limit"


def test_wrong_keys_are_forgotten_after_a_minute(clock: Clock) -> None:
    there = access(clock)
    for _ in range(MOST_WRONG * 5):
        assert not guess(there)
        clock.now += guesses.WITHIN_S / MOST_WRONG


def test_each_peer_has_its_own_count(clock: Clock) -> None:
    there = access(clock)
    for _ in range(MOST_WRONG):
        guess(there)
    assert not guess(there, peer="192.0.2.2")
    assert guess(there, KEY, peer="192.0.2.3")


def test_the_number_of_peers_is_bounded(clock: Clock) -> None:
    there = access(clock)
    for number in range(MOST_PEERS + 50):
        guess(there, peer=str(number))
    assert len(there.guesses._wrong) == MOST_PEERS
    assert str(MOST_PEERS + 49) in there.guesses._wrong


@pytest.mark.parametrize(
    ("host", "peer"),
    [("192.0.2.7", "192.0.2.7"), ("::ffff:192.0.2.7", "192.0.2.7"), ("2001:db8:1:2:3::9", "2001:db8:1:2::/64"),
     ("2001:db8:1:2::1", "2001:db8:1:2::/64"), ("fe80::1%eth0", "fe80::/64"), ("testclient", "testclient")],
)  # fmt: skip
def test_a_peer_is_an_address_or_a_network_of_ipv6(host: str, peer: str) -> None:
    assert peer_of((host, 1)) == peer
    assert peer_of(None) == ""


def test_the_server_tells_when_to_try_again(pipeline: LLMPipeline, clock: Clock) -> None:
    right, wrong = {"Authorization": f"Bearer {KEY}"}, {"Authorization": "Bearer wrong"}
    with running(pipeline, access=access(clock)) as served:
        for _ in range(MOST_WRONG * 2):
            assert served.get("/v1/models").status_code == 401  # without a key, nothing is guessed
            assert served.get("/v1/models", headers=right).status_code == 200
        for _ in range(MOST_WRONG):
            assert served.get("/v1/models", headers=wrong).status_code == 401
        for headers in (right, wrong):
            refused = served.get("/v1/models", headers=headers)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["code"] == "too_many_wrong_keys"
        assert served.get("/health").status_code == 200
        clock.now += 1.0
        assert served.get("/v1/models", headers=right).status_code == 200
