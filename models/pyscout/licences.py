"""Which packages may be learnt from: the licence that a wheel's own metadata states, permissive ones only."""

from __future__ import annotations

import re
from email.message import Message

PERMISSIVE = frozenset(
    (
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "HPND",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "NCSA",
        "PSF-2.0",
        "Python-2.0",
        "Unlicense",
        "ZPL-2.1",
        "Zlib",
    )
)

_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "Historical Permission Notice and Disclaimer (HPND)": "HPND",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
    "Zope Public License": "ZPL-2.1",
}

# The free-text field, lower case, as packages without an SPDX expression write it.
_FREE_TEXT = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "isc license": "ISC",
    "mit": "MIT",
    "mit license": "MIT",
}

_COPYLEFT = re.compile(r"\b[AL]?GPL|GNU (?:Lesser |Library |Affero )?General Public|Mozilla Public", re.IGNORECASE)


def permissive_licence(metadata: Message) -> str | None:
    """The SPDX expression of a distribution if every licence that binds it is permissive, else None.

    Looks at `License-Expression`, then at the classifiers, then at a short `License` field, and believes the first
    of them that says anything. A licence that is not recognised counts as not permissive.
    """
    if expression := metadata.get("License-Expression"):
        return expression if _expression_is_permissive(expression) else None
    classifiers = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier", []) if c.startswith("License ::")]
    classifiers = [c for c in classifiers if c != "OSI Approved"]
    if classifiers:
        names = sorted({_CLASSIFIERS.get(c, "") for c in classifiers})
        return " AND ".join(names) if all(names) else None
    return _FREE_TEXT.get(metadata.get("License", "").strip().lower())


def mentions_copyleft(source: str) -> bool:
    """True if the head of a source file names a copyleft licence: a file copied in under other terms."""
    return _COPYLEFT.search(source[:3000]) is not None


def _expression_is_permissive(expression: str) -> bool:
    names = [name.strip("() ") for name in re.split(r"\s+(?:AND|OR)\s+", expression)]
    only_alternatives = " OR " in expression and " AND " not in expression
    known = [name in PERMISSIVE for name in names]
    return any(known) if only_alternatives else all(known)
