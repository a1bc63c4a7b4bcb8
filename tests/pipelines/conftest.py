"""What the tests of the decoding engine share."""

from __future__ import annotations

from hypothesis import settings

# A pass of a real model can take long on a busy machine; what a failing example needs to be run again is printed.
settings.register_profile("outrider", deadline=None, print_blob=True)
settings.load_profile("outrider")
