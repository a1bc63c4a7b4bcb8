"""Which devices are taken, and what a model is loaded with there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import openvino_genai
import pytest

from outrider.pipelines import CacheTooSmall, InvalidOption, LLMPipeline, Pair, PromptTooLong, UnsupportedDevice
from outrider.pipelines.devices import devices
from outrider.pipelines.devices.genai_loading import GenaiLoading
from outrider.pipelines.model.processor import limited_properties

from .elsewhere import Elsewhere

pytestmark = pytest.mark.slow

PROMPT = "def area(width, height):\n    return width * height\n"

LEAVE = """
import sys
from outrider.pipelines import GenerationConfig, Pair
from outrider.pipelines.devices.genai_loading import GenaiLoading
from outrider.pipelines.devices.genai_engine import GenaiEngine
from outrider.pipelines.engine.request import Request
from outrider.pipelines.model.processor import limited_properties
loading = GenaiLoading(Pair.open(sys.argv[1]), "CPU", speculation="off", properties=limited_properties())
engine = GenaiEngine(loading.load()[0], loading.room, 4096)
request = Request([5, 6, 7], GenerationConfig(), 2000)
engine.add(request)
engine.step()
print(request.num_new)
"""


@pytest.mark.parametrize("device", ["sledge", "cpu", "GPU.2", "NPU.1", ""])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(embedded_pair, monkeypatch, device):
    monkeypatch.setattr(devices, "device_names", lambda: ("CPU", "GPU.0", "GPU.1", "NPU"))
    with pytest.raises(UnsupportedDevice, match=f"no device '{device}'.*'CPU', 'GPU.0', 'GPU.1', 'NPU'"):
        LLMPipeline(embedded_pair, device)


@pytest.mark.parametrize("device", ["AUTO", "AUTO:GPU,CPU", "MULTI:CPU", "HETERO:GPU,CPU", "BATCH:GPU"])
def test_one_device_has_to_be_named(embedded_pair, device):
    for given in ({"device": device}, {"draft_device": device}):
        with pytest.raises(UnsupportedDevice, match=f"'{device}' is no single device: name one of .*'CPU'"):
            LLMPipeline(embedded_pair, **given)


@pytest.mark.parametrize(
    ("seen", "known"),
    [
        (("CPU",), {"CPU"}),
        (("CPU", "GPU"), {"CPU", "GPU", "GPU.0"}),
        (("CPU", "GPU.0", "GPU.1", "NPU"), {"CPU", "GPU", "GPU.0", "GPU.1", "NPU"}),
        ((), {"CPU"}),
    ],
    ids=["CPU", "one GPU", "two GPUs", "none"],
)
def test_the_names_that_openvino_understands_are_taken(monkeypatch, seen, known):
    monkeypatch.setattr(devices, "device_names", lambda: seen)
    taken = set()
    for device in ("CPU", "CPU.0", "GPU", "GPU.0", "GPU.1", "NPU", "NPU.0"):
        try:
            devices.check_device(device)
            taken.add(device)
        except UnsupportedDevice:
            pass
    assert taken == known


def test_a_draft_model_is_not_put_where_its_answers_would_be_wrong_nor_where_no_device_is(embedded_pair):
    with pytest.raises(UnsupportedDevice, match=r"no device 'GPU\.3'"):
        LLMPipeline(embedded_pair, draft_device="GPU.3")
    with pytest.raises(UnsupportedDevice, match=r"no device 'NPU'"):
        LLMPipeline(embedded_pair, draft_device="NPU")
    with pytest.raises(InvalidOption, match=r"draft_device='NPU' .*with OpenVINO GenAI.*engine='outrider'"):
        Elsewhere(embedded_pair, "GPU").open(draft_device="NPU", speculation="draft")


def test_this_machine_has_a_cpu():
    assert "CPU" in devices.device_names()
    devices.check_device("CPU")


def test_a_device_that_does_not_compile_is_said_with_the_reason(embedded_pair, monkeypatch):
    monkeypatch.setattr(devices, "device_names", lambda: ("CPU", "GPU"))

    def compile_model(model: Path, device: str, **properties: object) -> None:
        raise RuntimeError("Exception from src/core.cpp:117:\nCheck failed at plugin.cpp:3:\n[GPU] out of resources.\n")

    monkeypatch.setattr(openvino_genai, "LLMPipeline", compile_model)
    with pytest.raises(UnsupportedDevice, match=r"on GPU \(\[GPU\] out of resources\): update .*driver.*\(CPU, GPU\)"):
        LLMPipeline(embedded_pair, "GPU", speculation="off")


def test_an_unknown_property_is_said(embedded_pair):
    with pytest.raises(UnsupportedDevice, match=r"with HORSES \(.*HORSES.*\)"):
        Elsewhere(embedded_pair, "GPU").open(HORSES=4)


@pytest.mark.parametrize("device", ["GPU", "GPU.1"])
@pytest.mark.parametrize("properties", [{"prompt_lookup": True}, {"draft_model": "draft"}], ids=str)
def test_genais_own_names_for_drafting_are_refused_with_ours(embedded_pair, device, properties):
    with pytest.raises(InvalidOption, match=f"{next(iter(properties))}=.*speculation='lookup', or speculation='draft'"):
        Elsewhere(embedded_pair, device).open(**properties)


def test_files_to_quote_from_are_refused_where_nothing_is_drafted(embedded_pair, tmp_path):
    with pytest.raises(InvalidOption, match=r"reference='.*' has no effect on GPU.*engine='outrider'"):
        Elsewhere(embedded_pair, "GPU").open(reference=tmp_path)


def test_the_cache_of_a_gpu_has_the_size_that_is_asked_for(embedded_pair):
    elsewhere = Elsewhere(embedded_pair, "GPU")
    elsewhere.open()
    assert elsewhere.properties["scheduler_config"].num_kv_blocks == 0  # then it grows
    pipeline = elsewhere.open(cache_tokens=100)
    assert elsewhere.properties["scheduler_config"].num_kv_blocks == 7  # of 16 tokens
    with pytest.raises(CacheTooSmall, match=r"cache of 1\d\d tokens .*cache holds 112.*cache_tokens=117 or more"):
        pipeline.generate(PROMPT, max_new_tokens=100)
    with pytest.raises(PromptTooLong, match=r"prepared for 112.*cache_tokens=\d+ or more"):
        pipeline.generate(PROMPT * 9)
    answer = pipeline.generate(PROMPT, ignore_eos=True).generations[0]
    assert answer.finish_reason == "length"
    assert answer.stats.prompt_tokens + answer.stats.new_tokens == 112
    for name, value in (("scheduler_config", openvino_genai.SchedulerConfig()), ("ATTENTION_BACKEND", "SDPA")):
        with pytest.raises(InvalidOption, match=f"cache_tokens=100 .*{name}"):
            elsewhere.open(cache_tokens=100, **{name: value})


def test_what_was_computed_is_kept_for_the_next_prompt_only_where_exactness_is_given_up(embedded_pair):
    elsewhere = Elsewhere(embedded_pair, "GPU")
    for exact in (True, False):
        elsewhere.open(exact=exact)
        assert elsewhere.properties["scheduler_config"].enable_prefix_caching is not exact


def test_another_attention_of_genai_can_be_chosen(embedded_pair):
    elsewhere = Elsewhere(embedded_pair, "GPU")
    pipeline = elsewhere.open(ATTENTION_BACKEND="SDPA")
    assert elsewhere.properties == {"ATTENTION_BACKEND": "SDPA"}
    assert pipeline.generate(PROMPT, max_new_tokens=5).stats[0].new_tokens == 5


def test_a_cache_serves_one_request_after_the_other_to_its_last_slot(embedded_pair):
    loading = GenaiLoading(Pair.open(embedded_pair), "CPU", 64, speculation="off", properties=limited_properties())
    assert loading.room.tokens == 64
    model, _ = loading.load()
    config = openvino_genai.GenerationConfig(max_new_tokens=60, ignore_eos=True)
    for _ in range(3):
        tokens = openvino_genai.Tokenizer(embedded_pair / "target").encode("a b", add_special_tokens=False).input_ids
        config.max_new_tokens = 64 - tokens.shape[1]
        assert len(model.generate(tokens, config).tokens[0]) == config.max_new_tokens


def test_a_program_ends_quietly_in_the_middle_of_an_answer(embedded_pair):
    command = [sys.executable, "-c", LEAVE, str(embedded_pair / "target")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
