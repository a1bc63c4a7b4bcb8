"""The shipped pair, and pairs and checkpoints of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path


def embedded_pair() -> Path:
    """The folder of the shipped pair: `target/`, `draft/`, `head/`, `pair.json`. Its card is `pyscout/README.md`."""
    return Path(__file__).resolve().parent / "pyscout" / "pair"
