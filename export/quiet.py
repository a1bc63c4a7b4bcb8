"""Quiet: hides the output of the converters."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import rich

CHATTY = ("nncf", "optimum", "optimum.exporters.openvino", "optimum.intel", "transformers")


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings, progress bars and log messages below an error."""
    from transformers.utils import logging as transformers_logging

    loggers = [logging.getLogger(name) for name in CHATTY]
    levels = [logger.level for logger in loggers]
    bars = transformers_logging.is_progress_bar_enabled()
    console = rich.get_console()  # NNCF draws its progress there
    was_quiet = console.quiet
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            transformers_logging.disable_progress_bar()
            console.quiet = True
            yield
        finally:
            console.quiet = was_quiet
            if bars:
                transformers_logging.enable_progress_bar()
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
