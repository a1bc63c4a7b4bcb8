"""Drafting by OpenVINO GenAI on a GPU, fixed when a pair is loaded; see `elsewhere` for what stands in for a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import openvino_genai
import pytest

from outrider.app.load_options import LoadOptions
from outrider.pipelines import GenerationConfig, InvalidOption, LLMPipeline, UnsupportedDevice, UnsupportedModel
from outrider.pipelines.devices import genai_loading
from outrider.pipelines.devices.genai_config import to_genai
from outrider.pipelines.devices.genai_loading import TRIED
from outrider.pipelines.model import profile
from tests.on_gpu import gpu_present
from tests.on_npu import OnCpu

from . import elsewhere as elsewhere_module
from .elsewhere import Elsewhere

pytestmark = pytest.mark.slow

ROUNDING = 0.4  # of logits: how GenAI rounds depends on the cut of the tokens into passes
CODE = "def area(width, height):\n    return width * height\n"
RENAME = f"Rename `width` to `breadth`.\n\n{CODE}"
PROMPTS = [RENAME, CODE * 5, "x"]
DRAFTER = {"lookup": "prompt_lookup", "draft": "draft_model"}
SAMPLED = {"do_sample": True, "temperature": 2.0, "rng_seed": 5}


@pytest.fixture(scope="module")
def elsewhere(embedded_pair: Path) -> Elsewhere:
    return Elsewhere(embedded_pair, "GPU")


@pytest.fixture(scope="module")
def reference(embedded_pair: Path) -> OnCpu:
    return OnCpu(embedded_pair)


@pytest.fixture(scope="module", params=["lookup", "draft"])
def drafting(request: pytest.FixtureRequest, elsewhere: Elsewhere) -> LLMPipeline:
    pipeline = elsewhere.open(speculation=request.param)
    pipeline.warm_up()
    return pipeline


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of its own for what is remembered."""
    monkeypatch.setattr(profile, "user_cache_path", lambda *args, **options: tmp_path / "cache")


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of GenAI's pipelines, whose loading takes about a second, for tests that ask them nothing."""
    monkeypatch.setattr(elsewhere_module, "GENAI", lambda *given, **properties: None)


@pytest.mark.parametrize("num_tokens", [None, 1, 3])
def test_greedy_tokens_are_the_likeliest_and_take_fewer_passes(drafting, reference, num_tokens):
    options = {"max_new_tokens": 40, "ignore_eos": True}
    for prompt in PROMPTS:
        tokens = drafting.tokenizer.encode(prompt, False)
        answer = drafting.generate([tokens], num_assistant_tokens=num_tokens, **options).generations[0]
        assert len(answer.token_ids) == 40
        assert reference.shortfall(tokens, answer.token_ids) < ROUNDING
    stats = drafting.generate(CODE * 5, num_assistant_tokens=num_tokens, **options).stats[0]
    assert stats.new_tokens == 40
    assert stats.passes < 36
    assert stats.passes + stats.accepted == 40


def test_tokens_are_owed_to_whom_drafted_them(drafting):
    """The last of a pass is the target's."""
    answer = drafting.generate(RENAME, max_new_tokens=40, ignore_eos=True).generations[0]
    drafter = DRAFTER[drafting.modes[0]]
    assert set(answer.sources) == {"target", drafter}
    for record in answer.trace:
        assert record.sources == (drafter,) * (len(record.sources) - 1) + ("target",)
    assert sum((record.sources for record in answer.trace), ()) == answer.sources
    assert answer.stats.accepted_by == {drafter: answer.sources.count(drafter)}
    assert answer.stats.drafted == 0, "nobody tells how many were rejected"


def test_answers_end_at_any_token_that_is_to_end_them(drafting):
    whole = drafting.generate(RENAME, max_new_tokens=16, ignore_eos=True).generations[0].token_ids
    for token in set(whole):
        answer = drafting.generate(RENAME, max_new_tokens=16, stop_token_ids={token}).generations[0]
        assert answer.token_ids == whole[: whole.index(token) + 1]
        assert answer.finish_reason == "stop"


def test_an_answer_that_is_given_up_makes_room_for_the_next(drafting):
    whole = drafting.generate(RENAME, max_new_tokens=20)
    stream = drafting.stream(CODE * 9, max_new_tokens=800, ignore_eos=True)
    next(stream)
    stream.cancel()
    assert drafting.generate(RENAME, max_new_tokens=20) == whole


def test_a_pair_that_drafts_says_so_and_takes_no_other_mode(drafting):
    how = drafting.modes[0]
    assert drafting.modes == (how, "auto")
    assert not drafting.exact
    for mode in ("off", "suffix", "lookup" if how == "draft" else "draft"):
        with pytest.raises(InvalidOption, match=f"mode='{mode}' .*loaded for '{how}'"):
            drafting.generate(RENAME, mode=mode)
    assert drafting.generate(RENAME, mode=how) == drafting.generate(RENAME, mode="auto")


def test_sampling_is_left_to_prompt_lookup_since_genai_samples_wrongly_with_a_draft_model(drafting):
    if drafting.modes[0] == "draft":
        with pytest.raises(InvalidOption, match=r"issue 4190.*do_sample=False.*speculation='lookup'"):
            drafting.generate(RENAME, **SAMPLED)
        return
    first, second = (drafting.generate(RENAME, max_new_tokens=30, **SAMPLED) for _ in range(2))
    assert first == second
    assert first != drafting.generate(RENAME, max_new_tokens=30, **{**SAMPLED, "rng_seed": 6})


def test_a_least_length_is_refused_where_genai_drafts_and_would_end_the_answer_before_it(drafting):
    least = {"max_new_tokens": 48, "min_new_tokens": 40}
    with pytest.raises(InvalidOption, match=r"min_new_tokens=40 .*ends answers earlier.*speculation='off', engine='ou"):
        drafting.generate(CODE * 2, **least)
    assert len(drafting.generate(CODE * 2, ignore_eos=True, **least).generations[0].token_ids) == 48, "nothing ends it"


@pytest.mark.parametrize("speculation", ["auto", "off", "lookup", "draft"])
def test_a_models_own_least_length_is_kept_or_the_model_refused(
    embedded_pair, tmp_path, cache, nothing_loaded, speculation
):
    pair = shutil.copytree(embedded_pair, tmp_path / "pair")
    (pair / "target" / "generation_config.json").write_text('{"min_new_tokens": 40}', encoding="utf-8")
    if speculation in ("auto", "off"):
        assert Elsewhere(pair, "GPU").open(speculation=speculation).modes == ("off",)
    else:
        with pytest.raises(UnsupportedModel, match=r"generation_config.json has min_new_tokens=40.*speculation='off'"):
            Elsewhere(pair, "GPU").open(speculation=speculation)


def test_amounts_of_a_request_reach_genai():
    chosen = GenerationConfig(num_assistant_tokens=7, max_ngram_size=4)
    lookup = to_genai(chosen, 9, speculation="lookup")
    assert (lookup.num_assistant_tokens, lookup.max_ngram_size) == (7, 4)
    assert to_genai(GenerationConfig(num_assistant_tokens=7), 9, speculation="draft").num_assistant_tokens == 7
    assert to_genai(GenerationConfig(), 9).num_assistant_tokens is None
    assert to_genai(GenerationConfig(), 9, speculation="draft").num_assistant_tokens == 5


def test_the_draft_model_runs_where_it_is_told_to(elsewhere, nothing_loaded):
    asked = elsewhere.drafts
    asked.clear()
    elsewhere.open(speculation="draft")
    elsewhere.open(speculation="draft", draft_device="GPU.1")
    folder = elsewhere.pair / "draft"
    assert [each[:2] for each in asked] == [(folder, "CPU"), (folder, "GPU.1")]
    assert [each[2]["INFERENCE_PRECISION_HINT"] for each in asked] == ["f32", "f16"]


@pytest.mark.parametrize(
    ("speculation", "options", "remedy"),
    [
        ("off", {"num_assistant_tokens": 5}, "speculation='lookup' or speculation='draft'"),
        ("off", {"max_ngram_size": 4}, "speculation='lookup'"),
        ("draft", {"max_ngram_size": 4}, "speculation='lookup'"),
    ],
    ids=str,
)
def test_amounts_without_effect_are_refused(speculation, options, remedy):
    ((name, value),) = options.items()
    with pytest.raises(InvalidOption, match=rf"{name}={value} has no effect .*loaded for '{speculation}': .*{remedy}"):
        to_genai(GenerationConfig(**options), 9, speculation=speculation)


@pytest.mark.parametrize(("lookup_s", "expected"), [(0.8, "lookup"), (1.2, "off")])
def test_what_is_faster_is_found_out_once(elsewhere, cache, nothing_loaded, monkeypatch, lookup_s, expected):
    tried = []

    def answers_s(pipeline: object, speculation: str) -> float:
        tried.append(speculation)
        return lookup_s if speculation == "lookup" else 1.0

    monkeypatch.setattr(genai_loading, "_answers_s", answers_s)
    for _ in range(2):
        pipeline = elsewhere.open(speculation=None)
        assert pipeline.modes[0] == expected
        assert ("prompt_lookup" in elsewhere.properties) == (expected == "lookup")
    assert tried == ["off", "lookup"]


def test_what_is_faster_is_found_out_with_real_answers(elsewhere, cache, monkeypatch):
    asked = []
    real = elsewhere._load

    def load(model: Path, device: str, **properties: object) -> object:
        faulty = real(model, device, **properties)
        generate = faulty.generate
        faulty.generate = lambda prompt, config, streamer=None: (
            asked.append((prompt, "prompt_lookup" in properties)) or generate(prompt, config, streamer)
        )
        return faulty

    monkeypatch.setattr(elsewhere, "_load", load)
    assert elsewhere.open(speculation="auto").modes[0] in ("off", "lookup")
    assert list(dict.fromkeys(asked)) == [(prompt, how) for how in (False, True) for prompt in TRIED]


def test_where_prompt_lookup_is_not_possible_nothing_is_drafted(elsewhere, cache, monkeypatch, caplog):
    real = elsewhere._load

    def load(model: Path, device: str, **properties: object) -> object:
        if "prompt_lookup" in properties:
            raise RuntimeError("no paged attention")
        return real(model, device, **properties)

    monkeypatch.setattr(elsewhere, "_load", load)
    assert elsewhere.open(speculation="auto").modes == ("off",)
    assert "Prompt lookup is not possible on GPU" in caplog.text


def test_a_way_that_fails_when_it_is_tried_is_not_taken(elsewhere, cache, nothing_loaded, monkeypatch, caplog):
    def answers_s(pipeline: object, speculation: str) -> float:
        if speculation == "lookup":
            raise RuntimeError("Exception from src/plugin.cpp:7:\nout of registers\n")
        return 1.0

    monkeypatch.setattr(genai_loading, "_answers_s", answers_s)
    assert elsewhere.open(speculation="auto").modes == ("off",)
    assert "out of registers" in caplog.text


def test_a_device_that_fails_while_plain_decoding_is_tried_is_refused_with_what_to_do(
    elsewhere, cache, nothing_loaded, monkeypatch
):
    def answers_s(pipeline: object, speculation: str) -> float:
        raise RuntimeError("Exception from src/plugin.cpp:7:\nThe device was unplugged.\n")

    monkeypatch.setattr(genai_loading, "_answers_s", answers_s)
    with pytest.raises(UnsupportedDevice, match=r"GPU failed .*\(The device was unplugged\): update .*='off', so that"):
        elsewhere.open(speculation="auto")


def test_a_cache_without_room_for_what_is_tried_is_served_without_drafts(elsewhere, cache, caplog):
    for cache_tokens in (16, 48, 96):
        pipeline = elsewhere.open(speculation="auto", cache_tokens=cache_tokens)
        assert pipeline.modes == ("off",)
        assert pipeline.generate([[300]], max_new_tokens=4, ignore_eos=True).stats[0].new_tokens == 4
    assert caplog.text.count("no room to try prompt lookup in, so nothing is drafted: load the pair with cache_") == 3


def test_what_is_faster_is_remembered_for_a_scheduler_of_the_same_fields(
    elsewhere, cache, nothing_loaded, monkeypatch
):
    tried = []
    monkeypatch.setattr(genai_loading, "_answers_s", lambda pipeline, speculation: tried.append(speculation) or 1.0)
    schedulers = [openvino_genai.SchedulerConfig() for _ in range(3)]  # all alive, so each has its own address
    schedulers[2].max_num_batched_tokens = 512
    for scheduler in schedulers:
        elsewhere.open(speculation="auto", scheduler_config=scheduler)
    assert tried == ["off", "lookup"] * 2


def test_what_is_faster_is_found_out_again_for_other_weights_and_when_asked(
    embedded_pair, cache, nothing_loaded, monkeypatch, tmp_path
):
    tried = []
    monkeypatch.setattr(genai_loading, "_answers_s", lambda pipeline, speculation: tried.append(speculation) or 1.0)
    other = shutil.copytree(embedded_pair, tmp_path / "other")
    weights = other / "target" / "openvino_model.bin"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    for pair in (embedded_pair, other, other):
        Elsewhere(pair, "GPU").open(speculation="auto")
    assert tried == ["off", "lookup"] * 2
    LoadOptions("GPU").forget(other)
    Elsewhere(other, "GPU").open(speculation="auto")
    assert tried == ["off", "lookup"] * 3


def test_what_is_not_possible_is_refused_with_what_to_do(embedded_pair, elsewhere, tmp_path):
    with pytest.raises(InvalidOption, match=r"speculation='suffix' .*'off', 'lookup', 'draft', 'auto'"):
        elsewhere.open(speculation="suffix")
    with pytest.raises(InvalidOption, match=r"speculation='lookup' .*on CPU, with Outrider's engine, every request"):
        LLMPipeline(embedded_pair, speculation="lookup")
    with pytest.raises(InvalidOption, match=r"speculation='lookup' .*on GPU, with Outrider's engine, every request"):
        elsewhere.open(speculation="lookup", engine="outrider")
    with pytest.raises(InvalidOption, match=r"engine='genai' is for GPUs: leave it out on CPU"):
        LLMPipeline(embedded_pair, engine="genai")
    with pytest.raises(InvalidOption, match=r"engine='vllm' is not possible: give 'outrider' or 'genai'"):
        LLMPipeline(embedded_pair, engine="vllm")
    with pytest.raises(InvalidOption, match=r"draft_device='GPU.1' has no effect with speculation='auto'"):
        elsewhere.open(speculation="auto", draft_device="GPU.1")
    alone = shutil.copytree(embedded_pair / "target", tmp_path / "alone")
    with pytest.raises(InvalidOption, match=r"needs a draft model.*export the pair with --draft"):
        Elsewhere(alone, "GPU").open(speculation="draft")
    with gpu_present(), pytest.raises(InvalidOption, match=r"draft_device='GPU' needs a draft model"):
        LLMPipeline(alone, draft_device="GPU")


def test_exactness_that_was_asked_for_and_cannot_be_had_is_said(elsewhere, caplog):
    assert not elsewhere.open(exact=True).exact
    assert "cannot promise the same text for the same seed on GPU" in caplog.text
