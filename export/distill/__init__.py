"""Trains what drafts for a target, on text that the target generates: draft models, and heads in `head.py`.

DistillSpec (arXiv 2310.08461) compares the divergences, FastDraft (arXiv 2411.11055) the data.
"""

from .divergence import divergence
from .draft import batch_divergence, distil
from .samples import Sample, write_samples
from .settings import Distillation, Unrolling
from .training import Outcome

__all__ = [
    "Distillation",
    "Outcome",
    "Sample",
    "Unrolling",
    "batch_divergence",
    "distil",
    "divergence",
    "write_samples",
]
