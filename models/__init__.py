"""Models that come with Outrider."""

from __future__ import annotations

from pathlib import Path


def embedded_pair() -> Path:
    """The folder of the pair that is shipped: `target/`, `draft/`, `pair.json`. Its card is `pyscout/README.md`."""
    return Path(__file__).resolve().parent / "pyscout" / "pair"
