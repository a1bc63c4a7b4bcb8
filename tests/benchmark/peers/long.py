"""Prompts of about 3,600 tokens, where a pass over two rows costs more than one over a single row.

The pyscout models have learnt 1,024 tokens, so what they answer means nothing. What a pass costs does.
"""

from __future__ import annotations

from outrider.app.bench.prompts import functions
from outrider.app.bench.task import Task
from outrider.models.pyscout import edits

FAMILY = "long"


def long_tasks() -> list[Task]:
    """All functions with and without their docstrings in one prompt, each task beginning with another one."""
    sources = (*functions(), *map(edits.without_docstring, functions()))
    turned = [[*sources[i:], *sources[:i]] for i in range(len(sources))]
    return [Task(FAMILY, ("Repeat this code:\n" + "\n\n\n".join(order),)) for order in turned]
