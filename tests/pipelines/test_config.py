"""The options of a request: openvino_genai's names and defaults, every value checked, nothing unknown let through."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields

import openvino_genai
import pytest

from outrider.pipelines.config import UNLIMITED, GenerationConfig
from outrider.pipelines.errors import BrokenPair, InvalidOption, OutriderError, UnknownOption
from outrider.pipelines.structured.structured_output import StructuredOutputConfig

LOSSY = {"acceptance", "typical_epsilon", "typical_delta", "rollback_threshold"}
OURS = {"mode", "eos_token_ids", "logit_bias", *LOSSY}
NOT_SET_THERE = {"num_assistant_tokens", "max_ngram_size"}  # 0 or None there: drafter_set is off until asked for


@pytest.mark.parametrize("name", sorted({f.name for f in fields(GenerationConfig)} - OURS - NOT_SET_THERE))
def test_names_and_defaults_are_those_of_openvino_genai(name):
    ours, theirs = getattr(GenerationConfig(), name), getattr(openvino_genai.GenerationConfig(), name)
    assert ours == (None if theirs == UNLIMITED else theirs)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0), ("max_new_tokens", -1), ("max_new_tokens", 1.5), ("max_new_tokens", True),
        ("max_length", 0), ("min_new_tokens", -1), ("min_new_tokens", None), ("ignore_eos", 1),
        ("stop_strings", "end"), ("stop_strings", {""}), ("stop_strings", {1}), ("stop_strings", 3),
        ("stop_strings", [[1]]), ("include_stop_str_in_output", "yes"), ("stop_token_ids", {-1}),
        ("stop_token_ids", {"a"}), ("stop_token_ids", 5), ("eos_token_ids", [1.0]), ("apply_chat_template", None),
        ("do_sample", 1), ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")),
        ("temperature", 10**400), ("presence_penalty", 10**400), ("frequency_penalty", -1e308),
        ("temperature", "hot"), ("top_k", -1), ("top_k", 2.0), ("top_p", 0.0), ("top_p", 1.01), ("top_p", float("nan")),
        ("min_p", 1.0), ("min_p", -0.1), ("repetition_penalty", 0), ("repetition_penalty", -1),
        ("repetition_penalty", float("inf")), ("repetition_penalty", 5e-324),
        ("presence_penalty", float("nan")), ("frequency_penalty", float("inf")), ("frequency_penalty", None),
        ("logit_bias", {-1: 1}), ("logit_bias", {5: 100.5}), ("logit_bias", {5: float("nan")}),
        ("logit_bias", {5: None}), ("logit_bias", {"5": 1}), ("logit_bias", {True: 1}), ("logit_bias", {5: 1, "a": 1}),
        ("logit_bias", 5), ("logit_bias", None), ("logit_bias", [5]),
        ("rng_seed", -1), ("rng_seed", 2**64), ("rng_seed", 0.5), ("num_return_sequences", 0),
        ("acceptance", "lossy"), ("acceptance", None), ("typical_epsilon", 0), ("typical_delta", 1.5),
        ("rollback_threshold", -1), ("rollback_threshold", float("inf")),
        ("logprobs", -1), ("logprobs", 21), ("logprobs", True), ("logprobs", None),
        ("structured_output_config", "a+"), ("structured_output_config", {"regex": "a+"}),
        ("mode", "fast"), ("mode", None), ("mode", ["off"]), ("num_assistant_tokens", 0), ("num_assistant_tokens", 33),
        ("max_ngram_size", 0), ("max_ngram_size", "3"),
    ],
)  # fmt: skip
def test_an_impossible_value_is_refused_with_its_name_the_value_and_what_to_give(name, value):
    with pytest.raises(InvalidOption, match=rf"^{name}=.* is not possible: give "):
        GenerationConfig(**{name: value})
    with pytest.raises(InvalidOption, match=name):
        GenerationConfig().updated({name: value})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_tokens", "did you mean max_new_tokens?"),
        ("seed", "did you mean rng_seed?"),
        ("temprature", "did you mean temperature?"),
        ("stop", "did you mean stop_strings?"),
        ("beams", "known options are .*temperature"),
        ("_eos", "known options are|did you mean"),
    ],
)
def test_an_unknown_option_is_refused_with_a_hint(name, hint):
    with pytest.raises(UnknownOption, match=rf"'{name}': .*({hint})"):
        GenerationConfig().updated({name: 1})


def test_several_answers_need_sampling():
    with pytest.raises(InvalidOption, match=r"num_return_sequences=3 .*do_sample=True"):
        GenerationConfig(num_return_sequences=3)
    with pytest.raises(InvalidOption, match="temperature above 0"):
        GenerationConfig(num_return_sequences=3, do_sample=True, temperature=0)
    assert GenerationConfig(num_return_sequences=3, do_sample=True).num_return_sequences == 3


def test_a_bias_is_the_same_in_any_order_and_stays_when_something_else_changes():
    config = GenerationConfig(logit_bias={7: -100, 2: 0.5})
    assert config == GenerationConfig(logit_bias={2: 0.5, 7: -100})
    assert hash(config) == hash(GenerationConfig(logit_bias=[(2, 0.5), (7, -100)]))
    assert config.updated({"rng_seed": 1}).logit_bias == ((2, 0.5), (7, -100))


def test_a_shortest_length_above_the_longest_is_refused():
    with pytest.raises(InvalidOption, match="min_new_tokens=6 is more than max_new_tokens=5: lower"):
        GenerationConfig(min_new_tokens=6, max_new_tokens=5)
    with pytest.raises(InvalidOption, match="min_new_tokens=6 is more than max_new_tokens=5: lower"):
        GenerationConfig(max_new_tokens=5).updated({"min_new_tokens": 6})
    assert GenerationConfig(min_new_tokens=5, max_new_tokens=5).min_new_tokens == 5


@pytest.mark.parametrize(("limit", "shortest"), [(5, 5), (6, 6), (7, 6), (None, 6)])
def test_a_longest_length_alone_takes_a_default_shortest_one_along(limit, shortest):
    """Otherwise a model whose own configuration names a shortest answer would refuse requests for a shorter one."""
    config = GenerationConfig(min_new_tokens=6).updated({"max_new_tokens": limit})
    assert (config.min_new_tokens, config.max_new_tokens) == (shortest, limit)


def test_a_configuration_is_a_value():
    config = GenerationConfig(stop_strings=["b", "a"], stop_token_ids=(1,))
    assert config == GenerationConfig(stop_strings={"a", "b"}, stop_token_ids={1})
    assert hash(config) == hash(GenerationConfig(stop_strings={"a", "b"}, stop_token_ids={1}))
    with pytest.raises(FrozenInstanceError):
        config.temperature = 2.0
    assert config.updated({"temperature": 2.0}).temperature == 2.0
    assert config.temperature == 1.0


@pytest.mark.parametrize(
    ("options", "greedy"),
    [
        ({}, True),
        ({"temperature": 0.7}, True),
        ({"do_sample": True}, False),
        ({"do_sample": True, "temperature": 0}, True),
    ],
    ids=str,
)
def test_decoding_is_greedy_unless_sampling_is_asked_for_at_a_temperature(options, greedy):
    assert GenerationConfig(**options).greedy is greedy


def test_ignore_eos_leaves_the_other_stop_tokens():
    assert GenerationConfig(eos_token_ids={1}, stop_token_ids={2}).stop_ids == {1, 2}
    assert GenerationConfig(eos_token_ids={1}, stop_token_ids={2}, ignore_eos=True).stop_ids == {2}


def test_an_openvino_genai_configuration_means_the_same_here():
    theirs = openvino_genai.GenerationConfig()
    assert GenerationConfig.from_genai(theirs) == GenerationConfig()
    options = {
        "max_new_tokens": 7, "max_length": 70, "min_new_tokens": 2, "stop_strings": {"x"},
        "include_stop_str_in_output": True, "stop_token_ids": {3}, "do_sample": True, "temperature": 0.5, "top_k": 9,
        "top_p": 0.75, "min_p": 0.25, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25,
        "rng_seed": 11, "num_return_sequences": 2, "apply_chat_template": False, "num_assistant_tokens": 4,
        "max_ngram_size": 2, "logprobs": 3,
    }  # fmt: skip
    for name, value in options.items():
        setattr(theirs, name, value)
    assert GenerationConfig.from_genai(theirs) == GenerationConfig(**options, mode="lookup")
    theirs.eos_token_id = 5
    assert GenerationConfig.from_genai(theirs).eos_token_ids == {5}


def test_an_openvino_genai_configuration_that_ignores_the_end_ignores_the_stop_tokens_too():
    """There the model's own end is one of them, and GenAI continues after each."""
    theirs = openvino_genai.GenerationConfig()
    theirs.set_eos_token_id(5)
    theirs.stop_token_ids = {3, 5}
    assert GenerationConfig.from_genai(theirs).stop_ids == {3, 5}
    theirs.ignore_eos = True
    config = GenerationConfig.from_genai(theirs)
    assert config.ignore_eos
    assert config.stop_ids == set()


def test_an_openvino_genai_configuration_that_wants_no_draft_gets_none():
    theirs = openvino_genai.GenerationConfig()
    theirs.num_assistant_tokens = 0
    assert GenerationConfig.from_genai(theirs).mode == "off"


@pytest.mark.parametrize(("size", "mode", "longest"), [(7, "lookup", 7), (0, "auto", 3)])
def test_an_openvino_genai_configuration_for_prompt_lookup_gets_it(size, mode, longest):
    theirs = openvino_genai.GenerationConfig(num_assistant_tokens=5, max_ngram_size=size)
    config = GenerationConfig.from_genai(theirs)
    assert (config.mode, config.num_assistant_tokens, config.max_ngram_size) == (mode, 5, longest)


@pytest.mark.parametrize(
    ("name", "value", "neutral"),
    [
        ("num_beams", 4, 1), ("echo", True, False), ("no_repeat_ngram_size", 2, 0),
        ("assistant_confidence_threshold", 0.5, 0.0), ("tree_depth", 2, 0), ("pruning_ratio", 5, 0),
        ("return_omni_outputs", True, False),
    ],
)  # fmt: skip
def test_what_only_openvino_genai_can_do_is_refused_with_the_value_to_leave_it_at(name, value, neutral):
    theirs = openvino_genai.GenerationConfig()
    setattr(theirs, name, value)
    told = f"^{name}={value} is not supported: .* leave it at {neutral}"
    for convert in (lambda: GenerationConfig.from_genai(theirs), lambda: GenerationConfig().updated({name: value})):
        with pytest.raises(UnknownOption, match=told):
            convert()
    assert GenerationConfig().updated({name: neutral}) == GenerationConfig()


def test_whoever_asks_for_beams_is_told_that_there_are_none():
    theirs = openvino_genai.GenerationConfig(num_beam_groups=3, num_beams=15, diversity_penalty=1.0)
    theirs.num_return_sequences = theirs.num_beams
    with pytest.raises(UnknownOption, match=r"^num_beams=15 is not supported: Outrider has no beam search"):
        GenerationConfig.from_genai(theirs)
    with pytest.raises(UnknownOption, match="no beam search"):
        GenerationConfig().updated({"echo": True, "num_return_sequences": 4, "num_beams": 4})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_beams", 1), ("no_repeat_ngram_size", 0), ("no_repeat_ngram_size", UNLIMITED), ("num_beam_groups", 2),
        ("diversity_penalty", 1.0), ("length_penalty", 2.0), ("stop_criteria", openvino_genai.StopCriteria.EARLY),
        ("branching_factor", 3), ("relevance_weight", 0.2), ("echo", False), ("parsers", []), ("adapters", None),
    ],
)  # fmt: skip
def test_what_changes_nothing_in_openvino_genai_is_taken(name, value):
    theirs = openvino_genai.GenerationConfig()
    setattr(theirs, name, value)
    assert GenerationConfig.from_genai(theirs) == GenerationConfig()
    assert GenerationConfig().updated({name: value}) == GenerationConfig()


def test_every_option_of_openvino_genai_is_taken_at_its_default():
    theirs = openvino_genai.GenerationConfig()
    values = {name: getattr(theirs, name) for name in dir(theirs) if not name.startswith("_")}
    ours = {f.name for f in fields(GenerationConfig)} | {"eos_token_id"}
    options = {name: value for name, value in values.items() if name not in ours and not callable(value)}
    assert len(options) > 10
    assert GenerationConfig().updated(options) == GenerationConfig()


def test_a_models_own_defaults_are_read(tmp_path):
    assert GenerationConfig.from_folder(tmp_path) == GenerationConfig()
    stored = {"eos_token_id": [1, 2], "temperature": 0.6, "top_k": 0, "do_sample": True, "transformers_version": "5"}
    (tmp_path / "generation_config.json").write_text(json.dumps(stored))
    expected = GenerationConfig(eos_token_ids={1, 2}, temperature=0.6, do_sample=True)
    assert GenerationConfig.from_folder(tmp_path) == expected
    more = {
        "stop_strings": ["x"], "presence_penalty": 0.5, "frequency_penalty": 1.0, "max_length": 512, "ignore_eos": True,
        "include_stop_str_in_output": True,
    }  # fmt: skip
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 3, **more}))
    assert GenerationConfig.from_folder(tmp_path) == GenerationConfig(eos_token_ids={3}, **more)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 3, "stop_strings": "end"}')
    assert GenerationConfig.from_folder(tmp_path) == GenerationConfig(eos_token_ids={3}, stop_strings={"end"})


def test_no_limit_can_be_written_as_zero_as_elsewhere():
    assert GenerationConfig(top_k=0) == GenerationConfig().updated({"top_k": 0}) == GenerationConfig()
    theirs = openvino_genai.GenerationConfig()
    theirs.top_k = 0
    assert GenerationConfig.from_genai(theirs).top_k is None


def test_a_structure_sets_aside_the_least_length_that_a_model_comes_with():
    own, form = GenerationConfig(min_new_tokens=3), StructuredOutputConfig(regex="yes|no")
    assert own.updated({"structured_output_config": form}).min_new_tokens == 0
    with pytest.raises(InvalidOption, match="min_new_tokens=3 is not possible with structured_output_config"):
        own.updated({"structured_output_config": form, "min_new_tokens": 3})


def test_defaults_of_a_model_that_outrider_does_not_know_are_told(tmp_path, caplog):
    stored = {"num_beams": 4, "no_repeat_ngram_size": 0, "echo": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(stored))
    assert GenerationConfig.from_folder(tmp_path) == GenerationConfig()
    assert "{'num_beams': 4, 'echo': True}" in caplog.text


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "7", '{"temperature": "hot"}', '{"eos_token_id": "end"}', '{"eos_token_id": [[1]]}', "\udcff"],
)
def test_damaged_defaults_of_a_model_are_told_with_the_file(tmp_path, content):
    (tmp_path / "generation_config.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(BrokenPair, match=r"generation_config\.json"):
        GenerationConfig.from_folder(tmp_path)


def test_every_refusal_is_of_one_family():
    assert all(issubclass(kind, OutriderError) for kind in (InvalidOption, UnknownOption, BrokenPair))


def test_acceptance_is_exact_unless_it_is_named():
    assert GenerationConfig().acceptance == "exact"
    assert not GenerationConfig().lossy
    assert GenerationConfig(acceptance="rejection").lossy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"typical_epsilon": 0.1}, "acceptance='typical'"),
        ({"acceptance": "threshold", "typical_delta": 0.1}, "acceptance='typical'"),
        ({"acceptance": "typical", "rollback_threshold": 1.0}, "acceptance='threshold'"),
        ({"acceptance": "typical", "mode": "off"}, "drafts nothing"),
    ],
    ids=str,
)
def test_a_rule_or_its_parameters_without_effect_are_refused(options, message):
    with pytest.raises(InvalidOption, match=message):
        GenerationConfig(**options)


def test_another_rule_drops_the_parameters_of_the_one_before():
    typical = GenerationConfig(acceptance="typical", typical_epsilon=0.2)
    assert typical.updated({"acceptance": "exact"}) == GenerationConfig()
    assert typical.updated({"acceptance": "typical"}) == typical
    with pytest.raises(InvalidOption, match=r"typical_epsilon=0\.3"):
        typical.updated({"acceptance": "exact", "typical_epsilon": 0.3})
