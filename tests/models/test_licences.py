"""Only packages whose own metadata states a permissive licence are learnt from."""

from __future__ import annotations

from email.parser import Parser

import pytest

from outrider.models.pyscout.licences import mentions_copyleft, permissive_licence


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT", "MIT"),
        ("License-Expression: BSD-3-Clause AND 0BSD", "BSD-3-Clause AND 0BSD"),
        ("License-Expression: MIT OR GPL-2.0-only", "MIT OR GPL-2.0-only"),
        ("License-Expression: MIT AND GPL-2.0-only", None),
        ("License-Expression: (MIT OR GPL-2.0-only) AND MPL-2.0", None),
        ("License-Expression: LicenseRef-Something", None),
        ("Classifier: License :: OSI Approved :: MIT License", "MIT"),
        ("Classifier: License :: OSI Approved :: GNU General Public License v2 (GPLv2)", None),
        (
            "License: MIT\nClassifier: License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)",
            None,
        ),
        ("License: Apache 2.0", "Apache-2.0"),
        ("License: gpl", None),
        ("License: see the file", None),
        ("Name: nothing", None),
        ("Classifier: License :: OSI Approved\nLicense: BSD", "BSD-3-Clause"),
    ],
)
def test_a_licence_counts_only_if_it_is_known_to_be_permissive(metadata: str, licence: str | None) -> None:
    assert permissive_licence(Parser().parsestr(metadata)) == licence


def test_a_file_under_other_terms_is_recognised() -> None:
    assert mentions_copyleft("# This file is under the GNU General Public License\n")
    assert mentions_copyleft("# LGPL\n")
    assert not mentions_copyleft("# MIT License\ndef eagpl(): pass\n")
