"""Quiet: what the converters print about themselves, kept off the screen."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

CHATTY = ("nncf", "optimum", "optimum.exporters.openvino", "optimum.intel", "transformers")


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings and log messages below an error; progress bars and errors stay."""
    loggers = [logging.getLogger(name) for name in CHATTY]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
