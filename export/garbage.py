"""Garbage: collections that pass over what was there before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """Meanwhile only what comes into being is collected. A collection takes half a second with all that torch,
    transformers and NNCF bring, and converters do several for each model."""
    if gc.get_freeze_count():  # by whoever calls
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
