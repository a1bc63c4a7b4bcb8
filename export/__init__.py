"""Exports a target and its draft model as a pair for Outrider. Requires the [export] extra."""

from .compression import Compression
from .pair_export import export_pair

__all__ = ["Compression", "export_pair"]
