"""A pair that is missing, damaged or does not fit: each refused at once, by name, with what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from outrider.pipelines import (
    BrokenPair,
    InvalidOption,
    LLMPipeline,
    OutriderError,
    Pair,
    UnsupportedModel,
    VocabularyMismatch,
)
from outrider.pipelines.model.heads.head_kind import open_head
from outrider.pipelines.model.paged_model import read_paged_model
from outrider.pipelines.model.pair import MODEL, MODEL_FILES
from outrider.pipelines.model.vocabulary import check_same_vocabulary


@pytest.fixture(scope="module")
def pair(embedded_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(embedded_pair, tmp_path_factory.mktemp("broken") / "pair"))


@contextmanager
def damaged(path: Path, content: bytes | None) -> Iterator[None]:
    """A file with other content, or none at all, for a while."""
    before = path.read_bytes()
    path.unlink()
    try:
        if content is not None:
            path.write_bytes(content)
        yield
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("model", ["target", "draft"])
@pytest.mark.parametrize("name", MODEL_FILES)
def test_a_missing_file_is_named(pair: Path, model, name):
    with damaged(pair / model / name, None), pytest.raises(BrokenPair, match=rf"{model} lacks {name}: export"):
        LLMPipeline(pair)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        "target/config.json", "target/generation_config.json", "target/openvino_model.xml", "target/openvino_model.bin",
        "target/openvino_tokenizer.xml", "target/openvino_tokenizer.bin", "target/openvino_detokenizer.xml",
        "draft/config.json", "draft/openvino_model.xml", "draft/openvino_model.bin", "pair.json",
    ],
)  # fmt: skip
@pytest.mark.parametrize("content", [b"", b"neither XML nor JSON \xff"], ids=["empty", "garbage"])
def test_a_damaged_file_is_told_and_nothing_else_happens(pair: Path, path, content):
    with damaged(pair / path, content), pytest.raises(BrokenPair, match="export"):
        LLMPipeline(pair)


def test_what_openvino_finds_wrong_with_a_model_is_told_in_one_sentence(pair: Path, tmp_path: Path):
    path = pair / "draft" / MODEL
    with damaged(path.with_suffix(".bin"), b""), pytest.raises(BrokenPair) as broken:
        read_paged_model(ov.Core(), path.parent)
    assert str(broken.value) == f"{path} cannot be read (Incorrect weights in bin file!): export the pair again."
    states = ops.parameter([-1, 8], ov.Type.f32)
    ov.save_model(ov.Model([ops.relu(states)], [states]), tmp_path / MODEL)
    with pytest.raises(UnsupportedModel, match=r"no paged-attention form \([^\n]+\), so .* for text generation\.$"):
        read_paged_model(ov.Core(), tmp_path)


def test_a_configuration_without_context_length_is_told(pair: Path):
    with damaged(pair / "target" / "config.json", b"{}"), pytest.raises(BrokenPair, match="max_position_embeddings"):
        LLMPipeline(pair)


def test_a_folder_that_is_none_or_empty_is_told(tmp_path: Path):
    with pytest.raises(BrokenPair, match=r"There is no folder .*nowhere"):
        LLMPipeline(tmp_path / "nowhere")
    with pytest.raises(BrokenPair, match=r"is not a pair, since it has neither pair\.json nor openvino_model\.xml"):
        LLMPipeline(tmp_path)


def test_a_model_of_images_and_text_is_called_one(tmp_path: Path):
    (tmp_path / "openvino_language_model.xml").touch()
    with pytest.raises(BrokenPair, match="holds a model of images and text, which cannot be run yet: give a pair"):
        LLMPipeline(tmp_path)


def test_a_draft_that_pair_json_names_and_is_gone_is_told(pair: Path):
    hidden = (pair / "draft").rename(pair / "hidden")
    try:
        with (
            damaged(pair / "pair.json", b'{"models": {"draft": {}}}'),
            pytest.raises(BrokenPair, match="lacks the draft/"),
        ):
            Pair.open(pair)
    finally:
        hidden.rename(pair / "draft")


@pytest.mark.parametrize(
    "models", [b"null", b"[]", b'{"target": null}', b'{"target": []}', b'{"target": {"properties": ["x"]}}']
)
def test_a_pair_json_of_another_build_is_told(pair: Path, models: bytes):
    with (
        damaged(pair / "pair.json", b'{"models": ' + models + b"}"),
        pytest.raises(BrokenPair, match=r"pair\.json .* export the pair again"),
    ):
        LLMPipeline(pair)


@pytest.mark.parametrize(
    "about",
    [
        {"skip_layers": [0]}, {"skip_layers": [6]}, {"skip_layers": "2"}, {"skip_layers": [True]}, {"exit_layer": 6},
        {"exit_layer": "3"}, {"exit_layer": 0}, {"exit_layer": 3, "skip_layers": [2]},
    ],
    ids=str,
)  # fmt: skip
def test_layers_that_drafts_cannot_skip_are_told(pair: Path, about):
    metadata = json.loads((pair / "pair.json").read_bytes())
    metadata["models"]["target"] |= about
    with (
        damaged(pair / "pair.json", json.dumps(metadata).encode()),
        pytest.raises(BrokenPair, match=r"(layers to skip|an exit before layer).*: export .* again"),
    ):
        LLMPipeline(pair)


@pytest.mark.slow
def test_a_bare_model_folder_is_a_pair_without_a_draft(pair: Path):
    alone = LLMPipeline(pair / "target", cache_tokens=256, exact=True)
    assert alone.pair.draft is None
    assert alone.modes == ("off", "lookup", "suffix", "recycling", "auto")
    with pytest.raises(InvalidOption, match=r"mode='draft' needs a draft model.*export the pair with --draft"):
        alone.generate("x", mode="draft")
    assert alone.generate("x", max_new_tokens=3).stats[0].new_tokens <= 3


def test_a_model_without_a_chat_template_takes_text_and_refuses_messages(pair: Path):
    bare = Path(shutil.copytree(pair / "target", pair.parent / "bare", dirs_exist_ok=True))
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    (bare / "tokenizer_config.json").unlink()
    for name in ("openvino_tokenizer.xml", "openvino_detokenizer.xml"):  # the export stores the template here as well
        text = (bare / name).read_text(encoding="utf-8")
        (bare / name).write_text("\n".join(line for line in text.split("\n") if "chat_template" not in line), "utf-8")
    pipeline = LLMPipeline(bare, cache_tokens=256, exact=True)
    assert not pipeline.tokenizer.has_chat_template
    assert pipeline.generate("x = 1", max_new_tokens=3).stats[0].new_tokens <= 3
    with pytest.raises(InvalidOption, match="no chat template"):
        pipeline.generate([{"role": "user", "content": "x"}])


@pytest.mark.slow
def test_a_draft_of_another_vocabulary_is_refused_with_the_first_differing_tokens(pair: Path):
    """Two words of the same length change places in the draft's tokenizer."""
    tokenizers = [pair / "draft" / f"openvino_{kind}.bin" for kind in ("tokenizer", "detokenizer")]
    before = [path.read_bytes() for path in tokenizers]
    try:
        for path, content in zip(tokenizers, before, strict=True):
            assert b"return" in content
            path.write_bytes(content.replace(b"return", b"nruter"))
        with pytest.raises(VocabularyMismatch, match=r"'nruter' is absent in the target.*same family"):
            LLMPipeline(pair)
    finally:
        for path, content in zip(tokenizers, before, strict=True):
            path.write_bytes(content)
    LLMPipeline(pair, cache_tokens=64)


def test_the_tokenizer_of_a_draft_model_is_not_loaded_where_it_has_the_tokens_of_the_target(pair: Path):
    with damaged(pair / "draft" / "openvino_tokenizer.xml", b""):
        LLMPipeline(pair, cache_tokens=64)
    with (
        damaged(pair / "draft" / "openvino_tokenizer.bin", b""),
        pytest.raises(BrokenPair, match=r"tokenizer in .*draft cannot be loaded"),
    ):
        LLMPipeline(pair, cache_tokens=64)


def test_vocabularies_must_be_the_same_id_for_id():
    check_same_vocabulary({b"a": 0, b"b": 1}, {b"b": 1, b"a": 0}, "A and B")
    with pytest.raises(VocabularyMismatch, match=r"A and B differ in 2 tokens \('a' is 0 in .* and 1 in the draft"):
        check_same_vocabulary({b"a": 0, b"b": 1}, {b"a": 1, b"b": 0}, "A and B")
    with pytest.raises(VocabularyMismatch, match=r"1 tokens \('\\\\xff' is absent in the target and 2 in the draft\)"):
        check_same_vocabulary({b"a": 0}, {b"a": 0, b"\xff": 2}, "A and B")


@pytest.mark.parametrize("cache_tokens", [1, 0, -5, 4096.0, "4096", True])
def test_a_cache_of_no_use_is_refused(pair: Path, cache_tokens):
    with pytest.raises(InvalidOption, match=rf"cache_tokens={cache_tokens!r} .*whole number"):
        LLMPipeline(pair, cache_tokens=cache_tokens)


def test_an_unknown_property_is_refused(pair: Path):
    with pytest.raises(OutriderError, match="no_such_property"):
        LLMPipeline(pair, no_such_property=1)


def test_a_head_that_does_not_say_which_tokens_it_knows_or_knows_more_than_the_target_is_refused(
    pair: Path, tmp_path: Path
) -> None:
    changed = shutil.copytree(pair / "head", tmp_path / "head")
    model = ov.Core().read_model(pair / "head" / MODEL)
    result = next(each for each in model.get_results() if "d2t" in each.input_value(0).get_names())
    differences = ops.constant(np.append(result.input_value(0).get_node().data[:-1], 5))
    differences.output(0).set_names({"d2t"})
    result.input(0).replace_source_output(differences.output(0))
    ov.save_model(model, changed / MODEL, compress_to_fp16=False)
    with pytest.raises(UnsupportedModel, match=r"at least 4101 tokens in its vocabulary, and this target has 4096"):
        open_head(changed, pair / "target", 4)
    model.remove_result(result)
    ov.save_model(model, changed / MODEL, compress_to_fp16=False)
    with pytest.raises(UnsupportedModel, match=r"not built as optimum-intel builds EAGLE-3 heads .*: export it again"):
        open_head(changed, pair / "target", 4)
