from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from outrider.models.catalogue import CACHE_TOKENS, SHIPPED, Catalogue, Head, Model
from outrider.models.errors import BadCatalogue, UnknownName
from outrider.pipelines.speculation import loaded_target


def test_every_entry_is_whole() -> None:
    catalogue = Catalogue.shipped()
    assert len(set(catalogue.names)) == len(catalogue.names) >= 8
    for entry in catalogue.entries:
        assert re.fullmatch(r"[a-z0-9.-]+", entry.name), entry.name
        assert set(entry.devices) <= {"CPU", "GPU", "NPU"}
        for model in entry.models:
            assert re.fullmatch(r"[\w-]+/[\w.-]+", model.repository), model.repository
            assert model.licence
            assert model.confirmed
            assert 0.9 < model.size / (model.parameters * model.bits / 8) < 1.5, model  # a typing error would show
        assert entry.memory_bytes >= entry.download_bytes > 0


def test_every_model_belongs_to_a_pair() -> None:
    used = {model.repository for entry in Catalogue.shipped().entries for model in entry.models}
    assert used == {model["repository"] for model in json.loads(SHIPPED.read_text())["models"].values()}


def test_every_head_names_its_target_its_licence_and_the_page_where_both_were_read() -> None:
    from outrider.export.checkpoint import HEADS

    heads = Catalogue.shipped().heads
    assert heads
    for head in heads:
        assert all(re.fullmatch(r"[\w-]+/[\w.-]+", name) for name in (head.repository, head.target))
        assert head.kind in HEADS.values()
        assert head.licence not in ("", "other", "unknown")
        assert head.repository in head.confirmed
        assert head.confirmed.startswith("https://")


def test_the_command_of_a_head_is_one_of_export() -> None:
    from typer.testing import CliRunner

    from outrider.app.cli.main import app

    command = Head("o/head", "o/Target", "eagle3", "mit", "https://a/page").command
    assert command == "outrider export --target o/Target --head o/head --out target"
    result = CliRunner().invoke(app, [*command.split()[1:], "--help"])
    assert result.exit_code == 0, result.output


def test_the_cache_is_the_one_that_the_pipeline_takes() -> None:
    assert loaded_target.CACHE_TOKENS == CACHE_TOKENS


def test_a_size_that_nobody_read_is_computed_and_said_to_be() -> None:
    read = Model("org/a", "mit", "int4", 1000, 4, "a page", weight_bytes=700)
    computed = Model("org/b", "mit", "int8", 1000, 8, "a page")
    assert (read.size, computed.size) == (700, 1000)
    by_name = {entry["name"]: entry for entry in (entry.as_dict() for entry in Catalogue.shipped().entries)}
    assert by_name["phi-3-mini"]["target"]["bytes_are"] == "read"
    assert by_name["qwen3-8b"]["draft"]["bytes_are"] == "computed"


def test_an_unknown_name_is_refused_with_the_names_that_are_alike() -> None:
    with pytest.raises(UnknownName, match=r"'phi3-mini': did you mean phi-3-mini"):
        Catalogue.shipped().entry("phi3-mini")


def test_an_entry_may_name_a_commit_and_nothing_that_moves(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.json"
    content = json.loads(SHIPPED.read_text(encoding="utf-8"))
    name, model = next(iter(content["models"].items()))
    model["revision"] = commit = "0123abcd" * 5
    path.write_text(json.dumps(content), encoding="utf-8")
    (first, *_) = [
        each for entry in Catalogue.read(path).entries for each in entry.models
        if each.repository == model["repository"]
    ]  # fmt: skip
    assert first.revision == commit, name
    for revision in ("main", "v1", commit[:-1], commit.upper(), 5):
        model["revision"] = revision
        path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(BadCatalogue):
            Catalogue.read(path)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"note": "", "models": {"a": {"repository": 1}}, "pairs": [], "heads": []}',
     '{"note": "", "models": {}, "pairs": [{"name": "a", "about": "", "target": "b", "draft": null, "devices": []}]}',
     '{"note": "", "models": {}, "pairs": [], "heads": [{"repository": "a/b"}]}'],
)  # fmt: skip
def test_a_damaged_catalogue_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "catalogue.json"
    path.write_text(content)
    with pytest.raises(BadCatalogue, match="reinstall Outrider"):
        Catalogue.read(path)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("pairs", "devices", "CPU"), ("pairs", "about", 5), ("pairs", "target", None), ("pairs", "draft", "nobody"),
        ("pairs", "target", "nobody"), ("pairs", "drafts", None), ("models", "parameters", "8 billion"),
        ("models", "bits", 4.5), ("models", "licence", None), ("models", "cache", 8),
    ],
)  # fmt: skip
def test_a_catalogue_with_one_wrong_value_is_refused(tmp_path: Path, part: str, field: str, value: object) -> None:
    path = tmp_path / "catalogue.json"
    content = json.loads(SHIPPED.read_text(encoding="utf-8"))
    listed = content[part].values() if part == "models" else content[part]
    next(iter(listed))[field] = value
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(BadCatalogue):
        Catalogue.read(path)
