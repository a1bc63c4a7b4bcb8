"""What every test folder shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.pipelines.privacy import keep_private

keep_private()


@pytest.fixture(scope="session")
def embedded_pair() -> Path:
    """The folder of the pair that comes with Outrider."""
    from outrider import models

    return models.embedded_pair()
