"""Make a runnable pair of a target and its draft model. Needs the [export] extra."""

from .compression import Compression
from .pair_export import export_pair

__all__ = ["Compression", "export_pair"]
