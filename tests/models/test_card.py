"""The model card says what was measured."""

from __future__ import annotations

import json
from pathlib import Path

from outrider.models.pyscout import card, evaluate

HERE = Path(card.__file__).parent


def test_the_card_is_what_the_recipe_writes_from_the_figures_beside_it() -> None:
    evaluation = json.loads((HERE / "evaluation.json").read_text())
    head = json.loads((HERE / "head.json").read_text())
    heads = json.loads((HERE / "heads.json").read_text())
    packages = json.loads((HERE / "packages.json").read_text())
    text = (HERE / "README.md").read_text()
    assert text == card.write(evaluation, head, heads, packages)
    for task in evaluate.EXACT_TASKS:
        assert evaluation["exact"][task]["cases"] >= 200
        assert f"{evaluation['exact'][task]['exact']:.1%}" in text
    assert all(package["name"] in text for package in packages)
