from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outrider.export.checkpoint import Checkpoint, find_checkpoint
from outrider.export.compression import Compression
from outrider.export.convert import compress, convert, precisions
from outrider.export.errors import ConversionFailed
from outrider.models.errors import NoSuchModel
from outrider.pipelines.config import GenerationConfig
from outrider.pipelines.errors import UnsupportedModel
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.pair import context_length, num_layers
from outrider.pipelines.model.processor import GROUP_SIZE, PRECISION, fastest_precision
from outrider.pipelines.model.target import Window
from outrider.pipelines.model.tuning import load_target

from .conftest import make_tokenizer, save, save_renamed

MANY = 50_000  # weights; the target's embedding, which int4 leaves at int8, has 38,400


@pytest.fixture(scope="module")
def checkpoint(target: Path) -> Checkpoint:
    return find_checkpoint(str(target), remote_code=False, announce=print)


@pytest.fixture(scope="module")
def converted(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's IR, its weights uncompressed."""
    folder = tmp_path_factory.mktemp("converted") / "target"
    convert(checkpoint, folder, half=False)
    return folder


def compressed(converted: Path, folder: Path, compression: Compression) -> Path:
    shutil.copytree(converted, folder)
    compress(folder, compression, "target")
    return folder


def logits_of(model: PagedModel, tokens: list[int]) -> np.ndarray:
    parts = [(at, tokens[at : at + model.rows.most]) for at in range(0, len(tokens), model.rows.most)]
    windows = [Window(part, at, range(4), num_rows=len(part)) for at, part in parts]
    return np.concatenate([model.forward([window])[0].copy() for window in windows])


@pytest.mark.parametrize(
    ("compression", "stored"),
    [
        (Compression("int8"), {"i8"}),
        (Compression("int8", symmetric=False), {"u8"}),
        (Compression("int4", group_size=32), {"i4"}),
        (Compression("int4", group_size=-1, symmetric=False), {"u4"}),
        (Compression("int4", ratio=0.5), {"i8", "i4"}),
    ],
    ids=lambda value: "-".join(map(str, [value.weights, *value.settings.values()])) if "weights" in dir(value) else "",
)
def test_the_weights_are_stored_as_asked(
    converted: Path, tmp_path: Path, compression: Compression, stored: set[str]
) -> None:
    folder = compressed(converted, tmp_path / "target", compression)
    assert {name for name, count in precisions(folder).items() if count > MANY} == stored
    assert sorted(file.name for file in folder.iterdir()) == sorted(file.name for file in converted.iterdir())


def test_a_checkpoint_in_float64_is_converted_in_float32(target: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    doubled = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float64)
    folder = save(tmp_path / "doubled", doubled, make_tokenizer())
    convert(find_checkpoint(str(folder), False, print), tmp_path / "target", half=False)
    assert {name for name, count in precisions(tmp_path / "target").items() if count > MANY} == {"f32"}


def test_fp16_weights_compute_what_the_checkpoint_computes(checkpoint: Checkpoint, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    convert(checkpoint, tmp_path / "target", half=True)
    assert {name for name, count in precisions(tmp_path / "target").items() if count > MANY} == {"f16"}
    tokens = np.random.default_rng(0).integers(3, 300, 60).tolist()
    model = PagedModel(tmp_path / "target", num_blocks=4, properties={"KV_CACHE_PRECISION": "f32"})
    with torch.no_grad():
        reference = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32)
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    np.testing.assert_allclose(logits_of(model, tokens), expected, atol=1e-3 * float(expected.std()))


@pytest.mark.parametrize(
    ("rename", "said"),
    [
        (lambda name: f"_orig_mod.{name}", r"lacks 21 of .* \(lm_head.weight, model.embed_tokens.weight, .*, …\)"),
        (lambda name: name if ".1.mlp.up" not in name else "", r"lacks 1 of .* \(model.layers.1.mlp.up_proj.weight\):"),
    ],
    ids=["renamed", "missing"],
)
def test_a_checkpoint_that_lacks_weights_is_refused(
    target: Path, tmp_path: Path, rename: Callable[[str], str], said: str
) -> None:
    from transformers import PreTrainedModel

    loading = PreTrainedModel.from_pretrained
    source = save_renamed(target, tmp_path / "source", rename)
    with pytest.raises(NoSuchModel, match=f"^{re.escape(str(source))} {said}"):
        convert(find_checkpoint(str(source), False, print), tmp_path / "ir", half=False)
    assert PreTrainedModel.from_pretrained == loading


def test_weights_that_are_quantized_already_are_given_as_the_reason(target: Path, tmp_path: Path) -> None:
    source = shutil.copytree(target, tmp_path / "source")
    stored = json.loads((source / "config.json").read_text(encoding="utf-8"))
    stored["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    (source / "config.json").write_text(json.dumps(stored), encoding="utf-8")
    with pytest.raises(ConversionFailed, match=r"its weights are quantized already, with gptq: choose those that are"):
        convert(find_checkpoint(str(source), False, print), tmp_path / "ir", half=False)


def test_an_architecture_that_is_converted_with_an_older_transformers_only_is_refused(tmp_path: Path) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 1, "num_key_value_heads": 1}
    model = Gemma2ForCausalLM(Gemma2Config(vocab_size=300, num_hidden_layers=1, head_dim=32, **sizes))
    source = save(tmp_path / "source", model, make_tokenizer())
    said = r"gemma2 model, which optimum-intel converts with transformers up to 5\.\d+ only, and 5\.\S+ is installed"
    with pytest.raises(UnsupportedModel, match=said):
        convert(find_checkpoint(str(source), False, print), tmp_path / "ir", half=False)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_defaults_that_transformers_does_not_save_are_kept(target: Path, tmp_path: Path, file: str) -> None:
    source = shutil.copytree(target, tmp_path / "source")
    (source / "generation_config.json").unlink()
    stored = json.loads((source / file).read_text(encoding="utf-8")) if file == "config.json" else {}
    stored |= {"eos_token_id": [0, 7], "temperature": 0.6, "top_p": 0.9}  # without do_sample
    (source / file).write_text(json.dumps(stored), encoding="utf-8")
    convert(find_checkpoint(str(source), False, print), tmp_path / "ir", half=False)
    defaults = GenerationConfig.from_folder(tmp_path / "ir")
    assert (defaults.eos_token_ids, defaults.temperature, defaults.top_p) == ({0, 7}, 0.6, 0.9)


def test_a_model_whose_configuration_has_other_names_tells_its_layers_and_context(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=128, n_embd=32, n_layer=2, n_head=2))
    source = save(tmp_path / "source", model, make_tokenizer())
    convert(find_checkpoint(str(source), False, print), tmp_path / "ir", half=False)
    for folder in (source, tmp_path / "ir"):
        assert (num_layers(folder), context_length(folder)) == (2, 128)


@pytest.mark.parametrize("group_size", [32, 128])
def test_int4_models_give_the_same_logits_for_tokens_one_by_one_as_for_all_at_once(
    converted: Path, tmp_path: Path, group_size: int
) -> None:
    """There the matrix products of a single row can be others, too, with some sizes of groups. In fewer bits than f32
    not all of them do, and where that is so the check tells."""
    folder = compressed(converted, tmp_path / "target", Compression("int4", group_size=128))
    tokens = np.random.default_rng(0).integers(3, 300, 100).tolist()
    exact = []
    for precision in {"f32", fastest_precision()}:
        model, compilation = load_target(folder, 4, {GROUP_SIZE: group_size, PRECISION: precision}, exact=True)
        if not compilation.exact:
            continue
        exact.append(precision)
        whole = logits_of(model, tokens)
        for position, token in enumerate(tokens):
            (single,) = model.forward([Window([token], position, range(4))])
            assert np.array_equal(single[0], whole[position]), precision
    assert "f32" in exact
