"""What the tests of this folder share."""

from __future__ import annotations

from tests.quick import quick_measuring

__all__ = ["quick_measuring"]
