from __future__ import annotations

import pytest

from outrider.export.compression import Compression, compressions
from outrider.pipelines.errors import InvalidOption


def test_options_left_out_take_the_defaults_of_the_format() -> None:
    assert Compression("int8").settings == {"symmetric": True}
    assert Compression("int4", ratio=0.5).settings == {"symmetric": True, "group_size": 128, "ratio": 0.5}
    assert Compression("fp16").settings == {}


@pytest.mark.parametrize(
    "options",
    [
        {"weights": "int3"},
        {"weights": "int8", "group_size": 64},
        {"weights": "int8", "ratio": 0.5},
        {"weights": "fp16", "symmetric": False},
        {"weights": "int4", "group_size": 0},
        {"weights": "int4", "group_size": -2},
        {"weights": "int4", "ratio": 0.0},
        {"weights": "int4", "ratio": 1.5},
    ],
)
def test_an_impossible_option_is_refused_with_its_value(options: dict[str, object]) -> None:
    with pytest.raises(InvalidOption) as refusal:
        Compression(**options)  # type: ignore[arg-type]
    assert str(list(options.values())[-1]) in str(refusal.value)


def test_an_option_goes_to_the_formats_that_have_it() -> None:
    target, draft = compressions(["int4", "int8"], group_size=64, symmetric=False, ratio=None)
    assert target == Compression("int4", group_size=64, symmetric=False)
    assert draft == Compression("int8", symmetric=False)


def test_an_option_that_no_format_has_is_refused_not_ignored() -> None:
    with pytest.raises(InvalidOption, match="group_size=64 has no meaning for int8 and fp16 weights"):
        compressions(["int8", "fp16"], group_size=64)
