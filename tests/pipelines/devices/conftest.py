"""What the tests of devices share."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.export.compression import Compression

from .on_npu import make_pair


@pytest.fixture(scope="session")
def npu_pair(embedded_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded pair with symmetric int4 weights."""
    folder = tmp_path_factory.mktemp("npu") / "pair"
    return make_pair(embedded_pair, folder, Compression("int4", group_size=64))
