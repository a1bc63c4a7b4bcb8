"""What every test folder shares."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from outrider.pipelines.privacy import keep_private

keep_private()

# What is measured of a pair, and what is pulled, goes to folders of the tests' own, those of every process they start
# too.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="outrider-tests-")
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="outrider-tests-data-")

# A shell that starts the tests in the background ignores the interrupt, and so would every process they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def embedded_pair() -> Path:
    """The folder of the pair that comes with Outrider."""
    from outrider import models

    return models.embedded_pair()
