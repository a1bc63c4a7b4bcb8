"""What every test folder shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.models import embedded_pair as shipped_pair
from outrider.pipelines.privacy import keep_private

keep_private()


@pytest.fixture(scope="session")
def embedded_pair() -> Path:
    """The folder of the pair that comes with Outrider."""
    return shipped_pair()
