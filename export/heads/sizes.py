"""Whether a head was made for a target, by their sizes."""

from __future__ import annotations

from outrider.pipelines.errors import UnsupportedModel

from ..checkpoint import Checkpoint


def check_sizes(head: Checkpoint, target: Checkpoint, *sizes: tuple[str, int, int | None]) -> None:
    """sizes: what is counted, the target's number, and the number that the head needs. Raises UnsupportedModel if they
    differ."""
    for name, has, wants in sizes:
        if has != wants:
            raise UnsupportedModel(
                f"{head.source} is a head for a model with {wants} {name}, and {target.source} has {has}: choose the "
                "head that was made for this model."
            )
