"""Which draft tokens stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .sampling import Logits


def verify(rows: Sequence[Logits], draft: Sequence[int], target_token: Callable[[Logits], int]) -> Iterator[int]:
    """The target's own tokens, for as long as the draft foresaw them, and the one after.

    `rows[i]` is the target's logits after the first i draft tokens, so there is one more row than there are draft
    tokens. `target_token` turns a row into the token that the target writes there; it is called for a row only after the
    token before it was taken, and never behind the first rejection. The draft decides how many tokens come out, never
    which: each is what plain decoding writes. For drafts without randomness, and for drafts that share the target's
    noise, this accepts as the rejection sampling of Leviathan et al. (arXiv 2211.17192) does or better (arXiv 2408.07978).
    """
    assert len(rows) == len(draft) + 1
    for row, proposed in zip(rows, draft):
        token = target_token(row)
        yield token
        if token != proposed:
            return
    yield target_token(rows[-1])
