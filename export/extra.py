"""The packages of the [export] extra."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import MissingExtra

PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "safetensors": "safetensors",
    "nncf": "nncf",
    "optimum.intel": "optimum-intel",
}
INSTALL = 'pip install "outrider[export]"'


def require_extra() -> None:
    """Raises MissingExtra, which says how to install the missing packages."""
    missing = [package for module, package in PACKAGES.items() if not _is_installed(module)]
    if missing:
        raise MissingExtra(f"The export requires {', '.join(missing)}: install with {INSTALL}")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of a dotted name is missing
        return False
