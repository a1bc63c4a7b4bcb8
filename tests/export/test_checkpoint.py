from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from outrider.export.checkpoint import Checkpoint, find_checkpoint
from outrider.export.errors import NotADecoder
from outrider.models.errors import HubUnreachable, NoSuchModel
from outrider.pipelines.errors import UnsupportedModel


def find(source: Path | str, remote_code: bool = False) -> Checkpoint:
    return find_checkpoint(str(source), remote_code, announce=lambda text: None)


def write_config(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_checkpoint_is_described_by_its_files(target: Path) -> None:
    found = find(target)
    weights = target / "model.safetensors"
    assert (found.source, found.folder, found.architecture) == (str(target), target, "LlamaForCausalLM")
    assert found.size == weights.stat().st_size
    assert found.size - 10_000 < 2 * found.num_weights < found.size  # fp16, and a header
    assert found.revision.startswith("sha256:")


def test_the_revision_of_a_folder_changes_with_its_weights(target: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(target, tmp_path / "copy")
    assert find(copy).revision == find(target).revision
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert find(copy).revision != find(target).revision


@pytest.mark.parametrize("source", ["./nowhere", "/nowhere/at/all", "some/where/else", ""])
def test_a_path_that_is_not_there_is_refused_without_asking_the_hub(source: str) -> None:
    with pytest.raises(NoSuchModel, match=f"{source or 'An empty name'} is not a folder"):
        find(source)


def test_a_hub_id_without_network_is_refused_with_the_reason() -> None:
    with pytest.raises(HubUnreachable, match=r"nobody/nothing is not a folder.*HF_HUB_OFFLINE is set"):
        find("nobody/nothing")


def test_the_revision_of_a_hub_id_may_have_slashes() -> None:
    with pytest.raises(HubUnreachable, match=r"nobody/nothing@refs/pr/1 is not a folder.*HF_HUB_OFFLINE is set"):
        find("nobody/nothing@refs/pr/1")


def test_a_name_that_cannot_be_a_hub_id_is_refused() -> None:
    with pytest.raises(NoSuchModel, match="neither a folder nor a hub id"):
        find("no such model")


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoSuchModel, match=r"has no config\.json"):
        find(tmp_path)


def test_a_damaged_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(NoSuchModel, match="is not valid JSON"):
        find(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(NoSuchModel, match=r"config\.json is not the configuration of a model"):
        find(tmp_path)


def test_a_config_without_code_of_its_own_may_say_so_with_null(tmp_path: Path) -> None:
    write_config(tmp_path, model_type="bert", architectures=["BertForMaskedLM"], auto_map=None)
    with pytest.raises(NotADecoder, match="is BertForMaskedLM, not a decoder language model"):
        find(tmp_path)


def test_a_tilde_is_the_home_folder(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(target.parent))
    assert find(f"~/{target.name}").folder == target


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [("bert", "BertForMaskedLM"), ("t5", "T5ForConditionalGeneration"), ("llama", "LlamaForSequenceClassification")],
)
def test_a_model_that_is_no_decoder_is_refused_by_its_name(tmp_path: Path, model_type: str, architecture: str) -> None:
    write_config(tmp_path, model_type=model_type, architectures=[architecture])
    with pytest.raises(NotADecoder, match=f"{architecture}, not a decoder language model"):
        find(tmp_path)


QWEN3_5 = {
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "mrope_section": [11, 11, 10]},
    "mtp_num_hidden_layers": 1,
}


@pytest.mark.parametrize(
    ("architecture", "config", "message"),
    [
        (
            "Qwen3_5ForConditionalGeneration",
            {"model_type": "qwen3_5", "text_config": QWEN3_5, "vision_config": {"depth": 27}},
            r"a vision part, positions of three numbers a token \(M-RoPE\) and linear attention: choose a model",
        ),
        ("Qwen3_5ForCausalLM", {"model_type": "qwen3_5_text", **QWEN3_5}, r"\(M-RoPE\) and linear attention: choose"),
        ("Qwen3NextForCausalLM", {"model_type": "qwen3_next", "linear_num_key_heads": 16}, "want of linear attention:"),
        (
            "Qwen2VLForConditionalGeneration",
            {"model_type": "qwen2_vl", "rope_scaling": {"mrope_section": [16, 24, 24]}, "vision_config": {}},
            r"want of a vision part and positions of three numbers a token \(M-RoPE\): ",
        ),
        ("Gemma3ForConditionalGeneration", {"model_type": "gemma3", "vision_config": {}}, "want of a vision part: "),
        ("Qwen2AudioForConditionalGeneration", {"audio_config": {}, "text_config": {}}, "want of an audio part: "),
        (
            "OwnForCausalLM",
            {"linear_attn_config": {}, "auto_map": {"AutoModelForCausalLM": "modeling.OwnForCausalLM"}},
            "want of linear attention: ",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_a_model_needs_that_cannot_be_run_yet_is_named(
    tmp_path: Path, architecture: str, config: dict[str, Any], message: str
) -> None:
    write_config(tmp_path, architectures=[architecture], **config)
    with pytest.raises(UnsupportedModel, match=rf"{architecture}\) cannot be run yet, for .*{message}"):
        find(tmp_path)


@pytest.mark.parametrize("architecture", ["EAGLEModel", "Eagle3Speculator"])
def test_a_head_that_cannot_be_converted_is_refused_as_one(tmp_path: Path, architecture: str) -> None:
    write_config(tmp_path, architectures=[architecture])
    with pytest.raises(NotADecoder, match=r"head .* which optimum-intel cannot convert: choose another head"):
        find(tmp_path)


def test_an_encoder_decoder_is_refused_even_when_its_class_is_causal(tmp_path: Path) -> None:
    write_config(tmp_path, model_type="bart", architectures=["BartForCausalLM"], is_encoder_decoder=True)
    with pytest.raises(NotADecoder):
        find(tmp_path)


def test_code_that_comes_with_a_checkpoint_is_not_run_unasked(tmp_path: Path) -> None:
    auto_map = {"AutoModelForCausalLM": "modeling.OwnForCausalLM"}
    write_config(tmp_path, model_type="own", architectures=["OwnForCausalLM"], auto_map=auto_map)
    with pytest.raises(NotADecoder, match="--trust-remote-code"):
        find(tmp_path)


def test_a_checkpoint_without_weights_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path, model_type="llama", architectures=["LlamaForCausalLM"])
    with pytest.raises(NoSuchModel, match="has no weights"):
        find(tmp_path)


def test_damaged_weights_are_refused(target: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(target, tmp_path / "copy")
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(NoSuchModel, match="damaged or incomplete"):
        find(copy)


def test_weights_in_parts_of_which_one_is_missing_are_refused(target: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(target, tmp_path / "copy")
    index = copy / "model.safetensors.index.json"
    names = {"a": "model-1-of-3.safetensors", "b": "model-2-of-3.safetensors", "c": "model-3-of-3.safetensors"}
    index.write_text(json.dumps({"weight_map": names}))
    assert find(copy).num_weights == find(target).num_weights  # the index is left over: all weights are in one file
    (copy / "model.safetensors").rename(copy / names["a"])
    shutil.copy(copy / names["a"], copy / names["c"])
    with pytest.raises(NoSuchModel, match=r"lacks 1 of the 3 files of its weights \(model-2-of-3\.safetensors\)"):
        find(copy)
    index.write_text("[]")
    with pytest.raises(NoSuchModel, match=r"index\.json is damaged"):
        find(copy)
