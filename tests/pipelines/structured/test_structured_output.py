"""Answers in a form: the same tokens in every mode, only what the form allows, and what no form can be refused."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import openvino_genai
import pytest

from outrider.pipelines import GenerationConfig, InvalidOption, LLMPipeline, StructuredOutputConfig
from outrider.pipelines.engine.block_pool import BlockPool
from outrider.pipelines.model.paged_request import BLOCK_SIZE
from outrider.pipelines.speculation.drafters.draft_model import DraftModel

from ..real import PAIR_MODES, Models, in_ways, same, same_as_far_as_written
from ..requests import Asked, Asking
from ..speculation.broken_drafters import SABOTAGE, BrokenDrafter
from .structures import Structures, check_form, of_schema

PERSON = {
    "type": "object",
    "properties": {"description": {"type": "string", "maxLength": 9}, "note": {"const": "nothing more to say"}},
    "required": ["description", "note"],
    "additionalProperties": False,
}


def text_of(models: Models, request) -> str:
    return models.tokenizer.decode(request.new_tokens)


@in_ways("seed", slow=range(400, 403), skip=[400])
def test_every_mode_batch_and_cache_gives_the_same_tokens_in_form(models: Models, seed):
    rng, asking, structures = random.Random(seed), Asking(models.tokenizer, seed), Structures(seed)
    asked = [structures.question(asking, 40) if i % 4 else asking.question(20) for i in range(16)]
    asked = [replace(a, config=a.config.updated({"logprobs": rng.choice([0, 0, 2])})) for a in asked]
    plain = [models.served().one(question) for question in asked]
    drafted: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for shift in range(2):
        modes = [models.modes[1:][(i + shift) % (len(models.modes) - 1)] for i in range(len(asked))]
        alone = [models.served().one(question, mode) for question, mode in zip(asked, modes, strict=True)]
        same(alone, plain, asked, f"alone, {modes}")
        for request in alone:
            drafted.update(request.statistics.drafted_by)
            accepted.update(request.statistics.accepted_by)
    served = models.served()
    for what in ("cold", "warm"):
        same(served.all(asked, [rng.choice(models.modes) for _ in asked]), plain, asked, f"all at once, {what}")
    served.assert_nothing_leaked()
    finished = 0
    for request, question in zip(plain, asked, strict=True):
        if question.config.structured_output_config is not None:
            is_whole = request.finish_reason == "stop"
            check_form(question.config, text_of(models, request), is_whole)
            finished += is_whole
    assert finished >= 5
    assert set(accepted) >= {"grammar", "suffix"}
    assert accepted["grammar"] >= 0.9 * drafted["grammar"]


@in_ways("seed", slow=range(500, 502), exit=[500])
def test_the_answer_is_that_of_a_decoder_that_tries_every_token(models: Models, seed):
    asking, structures = Asking(models.tokenizer, seed), Structures(seed)
    forms = [StructuredOutputConfig(regex=structures.open_regex()) for _ in range(5)]
    asked = [structures.question(asking, 10, form) for form in forms]
    served = models.served()
    fast = served.all(asked, [models.modes[i % len(models.modes)] for i in range(len(asked))])
    for request, question in zip(fast, asked, strict=True):
        answer = models.slowly(question)
        assert request.new_tokens == answer.token_ids, f"{question} with {question.prompt}"
        assert request.finish_reason == answer.finish_reason


@pytest.mark.slow
def test_a_cache_that_holds_few_requests_and_cancellations_leave_the_forms_right(models: Models):
    rng, asking, structures = random.Random(7), Asking(models.tokenizer, 7), Structures(7)
    asked = [structures.question(asking, 40) if i % 3 else asking.question() for i in range(15)]
    asked = [replace(question, prompt=question.prompt[:100]) for question in asked]
    plain = [models.served().one(question) for question in asked]
    served = models.served(num_blocks=10)
    modes = [models.modes[i % len(models.modes)] for i in range(len(asked))]
    same(served.all(asked, modes), plain, asked, "small cache")
    first = served.some_cancelled(asked, modes[::-1], rng)
    same_as_far_as_written(first, plain)
    assert {request.finish_reason for request in first} >= {"cancelled", "stop"}
    served.assert_nothing_leaked()


@pytest.mark.parametrize("sabotage", ["random tokens", "ids behind the vocabulary", "raises at times", "words"])
def test_a_sabotaged_drafter_costs_no_row_that_the_form_rules_out(models: Models, sabotage):
    asking, structures = Asking(models.tokenizer, 9), Structures(9)
    asked = [structures.question(asking, 20, of_schema(PERSON)) for _ in range(4)]
    plain = models.served().all(asked, ["off"] * 4)
    served = models.served(drafters={"draft": BrokenDrafter(SABOTAGE[sabotage])})
    same(served.all(asked, ["draft"] * 4), plain, asked, sabotage)


def test_a_draft_that_breaks_the_form_costs_no_row(models: Models):
    config = GenerationConfig(structured_output_config=of_schema(PERSON), num_assistant_tokens=8)
    asked = Asked(tuple(models.tokenizer.encode("Describe this person.")), config, 40)
    brackets = models.tokenizer.encode(")")
    served = models.served(drafters={"lookup": BrokenDrafter(lambda request, rng: brackets * 8)})
    written = served.one(asked, "lookup")
    in_string = text_of(models, written).count(")")
    assert written.statistics.drafted_by.get("test", 0) <= 8 * (9 + in_string)  # only within the free string
    assert written.statistics.accepted_by["grammar"] >= 5


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "rng_seed": 5}], ids=str)
def test_the_draft_model_keeps_to_the_form_too(models: Models, options):
    """The target as its own draft model is nearly always right, so it must choose among the same tokens."""
    pool = BlockPool(64, BLOCK_SIZE)
    served = models.served(drafters={"draft": DraftModel(models.target, pool, 512)})
    form = StructuredOutputConfig(regex="[0-9a-f]{4}(, [0-9a-f]{4}){5}\\.")
    config = GenerationConfig(structured_output_config=form, num_assistant_tokens=6, **options)
    asked = Asked(tuple(models.tokenizer.encode("Name six numbers.")), config, 60)
    written = served.one(asked, "draft")
    assert written.new_tokens == models.served().one(asked).new_tokens
    assert re.fullmatch(str(form.regex), text_of(models, written))
    statistics = written.statistics
    assert statistics.drafted_by["draft_model"] > 10
    assert statistics.accepted >= 0.9 * statistics.drafted
    assert pool.num_free == pool.num_blocks


def test_what_is_forced_is_drafted_in_every_mode_but_off(pipeline: LLMPipeline):
    form = StructuredOutputConfig(regex="(yes|no), because the quick brown fox jumps over the lazy dog")
    expected = pipeline.generate("Is it so?", mode="off", structured_output_config=form).generations[0]
    assert re.fullmatch(str(form.regex), expected.text)
    assert expected.finish_reason == "stop"
    for mode in PAIR_MODES[1:]:
        for options in ({}, {"num_assistant_tokens": 4}):
            found = pipeline.generate("Is it so?", mode=mode, structured_output_config=form, **options).generations[0]
            assert (found.token_ids, found.finish_reason) == (expected.token_ids, "stop")
            assert found.stats.accepted_by["grammar"] == found.stats.drafted_by["grammar"] >= 6
            assert found.stats.passes < expected.stats.passes / 2
            assert sum(source == "grammar" for source in found.sources) == found.stats.accepted_by["grammar"]


@pytest.mark.parametrize("mode", PAIR_MODES)
def test_the_answer_ends_where_the_form_is_complete(pipeline: LLMPipeline, mode):
    for options in ({}, {"ignore_eos": True}, {"do_sample": True, "temperature": 2.0}):
        form = StructuredOutputConfig(regex="(aye|nay)[0-9]{3}")
        answer = pipeline.generate("x", mode=mode, structured_output_config=form, max_new_tokens=30, **options)
        assert re.fullmatch("(aye|nay)[0-9]{3}", str(answer)), answer
        assert answer.finish_reasons == ["stop"]


def test_an_end_is_written_only_where_the_form_may_end(pipeline: LLMPipeline):
    """At a high temperature the model would end anywhere."""
    end = pipeline.tokenizer.eos_token_id
    ended = 0
    for seed in range(12):
        form = StructuredOutputConfig(regex="[ab]{3}( [cd]{3})*")
        options = {"do_sample": True, "temperature": 3.0, "rng_seed": seed, "max_new_tokens": 20}
        found = pipeline.generate("x", structured_output_config=form, **options).generations[0]
        if found.finish_reason == "stop":
            assert found.token_ids[-1] == end
            assert re.fullmatch(str(form.regex), found.text)
            ended += 1
        forever = pipeline.generate("x", structured_output_config=form, ignore_eos=True, **options).generations[0]
        assert forever.finish_reason == "length"
        assert end not in forever.token_ids
    assert ended > 1


def test_stop_strings_and_tokens_cut_a_form_off(pipeline: LLMPipeline):
    form = StructuredOutputConfig(regex="[a-c]{4}-[0-9]{4}")
    whole = pipeline.generate("x", structured_output_config=form).generations[0]
    dash = next(token for token in whole.token_ids if "-" in pipeline.tokenizer.decode([token]))
    for mode in PAIR_MODES:
        for options in ({"stop_strings": {"-"}}, {"stop_token_ids": {dash}}):
            cut = pipeline.generate("x", structured_output_config=form, mode=mode, **options).generations[0]
            assert cut.finish_reason == "stop"
            assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
            assert cut.token_ids[-1] == dash


def test_json_has_no_endless_white_space(pipeline: LLMPipeline):
    for seed in range(3):
        options = {"do_sample": True, "temperature": 1.5, "rng_seed": seed, "max_new_tokens": 200}
        text = str(pipeline.generate("x", structured_output_config=of_schema(PERSON), **options))
        assert json.loads(text).keys() == {"description", "note"}
        assert not re.search(r"\n\s*\n", text)


def test_a_configuration_of_openvino_genai_means_the_same(pipeline: LLMPipeline):
    theirs = openvino_genai.GenerationConfig()
    theirs.max_new_tokens = 30
    theirs.logprobs = 1
    theirs.structured_output_config = openvino_genai.StructuredOutputConfig(regex="[ab]{4}")
    assert GenerationConfig.from_genai(theirs).structured_output_config == StructuredOutputConfig(regex="[ab]{4}")
    answer = pipeline.generate("x", theirs)
    assert re.fullmatch("[ab]{4}", str(answer))
    assert len(answer.generations[0].logprobs) == len(answer.generations[0].token_ids)
    tags = openvino_genai.StructuredOutputConfig(compound_grammar=openvino_genai.StructuredOutputConfig.Regex("a"))
    with pytest.raises(InvalidOption, match="compound_grammar is not supported"):
        pipeline.generate("x", structured_output_config=tags)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"regex": "(a|"}, "unclosed group"),
        ({"regex": "a(?=b)"}, "look-ahead"),
        ({"regex": ""}, "empty answer"),
        ({"regex": "(?x)a  # one\nb"}, "with the flag x it must be written on one line"),
        ({"grammar": "start: a\na[max_tokens=3, temperature=0.5]: /b+/"}, "a rule has no temperature of its own"),
        ({"json_schema": "{"}, "EOF while parsing"),
        ({"json_schema": "[]"}, "array|object"),
        ({"json_schema": '{"type": "objec"}'}, "objec"),
        ({"json_schema": '{"not": {"type": "null"}}'}, "not"),
        ({"json_schema": '{"$ref": "http://127.0.0.1:9/x.json"}'}, "127.0.0.1"),
        ({"grammar": "start: nothing"}, "nothing"),
        ({"grammar": "hello"}, "hello"),
        ({"grammar": ""}, "root"),
        ({"grammar": "start: " + "a " * 100_000}, "200,007 characters"),
    ],
    ids=str,
)
def test_what_is_no_form_is_refused_before_anything_runs(pipeline: LLMPipeline, form, reason):
    config, name = StructuredOutputConfig(**form), next(iter(form))
    message = rf"(?s)^structured_output_config\.{name}=.* is not possible: give a .*{reason}"
    for ask in (pipeline.generate, pipeline.stream):
        with pytest.raises(InvalidOption, match=message):
            ask("x", structured_output_config=config)
    assert not pipeline.speculation.engine._waiting


@pytest.mark.parametrize(
    "form",
    [
        {"json_schema": '{"$ref": "#"}'},
        {"regex": r"a[^\s\S]"},
        {"grammar": "root ::= root"},
        {"grammar": 'start: "a" x\nx: x'},
    ],
    ids=str,
)
def test_a_form_that_no_answer_has_is_refused_as_such(pipeline: LLMPipeline, form):
    with pytest.raises(InvalidOption, match="No token of this model's vocabulary can continue the answer"):
        pipeline.generate("x", structured_output_config=StructuredOutputConfig(**form))


def nested(levels: int, keyword: str) -> str:
    """A schema with so many levels, through references, since JSON itself may have 128 only."""
    definitions: dict[str, object] = {"0": {"type": "integer"}}
    for last in range(0, levels, 50):
        schema: object = {"$ref": f"#/$defs/{last}"}
        for _ in range(50):
            schema = {keyword: [schema] if keyword == "anyOf" else schema}
        definitions[str(last + 50)] = schema
    return json.dumps({"$ref": f"#/$defs/{last + 50}", "$defs": definitions})


@pytest.mark.parametrize(
    "form",
    [
        {"json_schema": nested(5000, "items")},
        {"json_schema": nested(5000, "anyOf")},
        {"json_schema": nested(5000, "additionalProperties")},
        {"grammar": "start: A0\n" + "".join(f"A{i}: A{i + 1}\n" for i in range(6000)) + 'A6000: "x"'},
        {"grammar": "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1}\n" for i in range(2000)) + 'a2000 ::= "x"'},
    ],
    ids=lambda form: next(iter(form.values()))[:40],
)
def test_a_form_may_be_nested_deeply(pipeline: LLMPipeline, form):
    """Compiled with the stack of this thread, these would end the process."""
    answer = pipeline.generate("x", structured_output_config=StructuredOutputConfig(**form), max_new_tokens=4)
    assert answer.stats[0].new_tokens > 0


@pytest.mark.slow
def test_a_form_that_proves_too_complex_ends_the_answer_with_the_reason(pipeline: LLMPipeline):
    form = StructuredOutputConfig(regex="(a{1000}){1000}")
    for mode in ("off", "auto"):
        with pytest.raises(InvalidOption, match=r"cannot be followed any further \(.+\): make it simpler"):
            pipeline.generate("x", structured_output_config=form, mode=mode)
    assert pipeline.generate("x", max_new_tokens=3).stats[0].new_tokens == 3


def too_wide(start: str) -> StructuredOutputConfig:
    """A grammar whose rule `wide` has more alternatives than llguidance can follow."""
    many = range(1100)
    rules = "\n".join(f'r{i}: "x" "{i}" | "y" r{(7 * i + 1) % len(many)}' for i in many)
    return StructuredOutputConfig(grammar=f"{start}\nwide: {' | '.join(f'r{i}' for i in many)}\n{rules}")


@pytest.mark.slow
def test_a_draft_that_is_too_complex_ends_no_answer_that_is_not(pipeline: LLMPipeline):
    """Copying proposes the branch of the form that is beyond what llguidance can follow; the answer takes the other."""
    form = too_wide('start: "q" ("a" A | "b" wide)\nA: /[a-z ]{1,60}/')
    q, b, x = (pipeline.tokenizer.encode(letter, False)[0] for letter in "qbx")
    options = {"structured_output_config": form, "max_new_tokens": 8, "logit_bias": {b: -100}}
    plain = pipeline.generate([[q, b, x] * 3], mode="off", **options)
    assert len(plain.generations[0].token_ids) == 8
    for mode in ("lookup", "suffix", "chained"):
        drafted = pipeline.generate([[q, b, x] * 3], mode=mode, num_assistant_tokens=4, **options)
        assert drafted.generations[0].token_ids == plain.generations[0].token_ids
    with pytest.raises(InvalidOption, match="make it simpler"):
        pipeline.generate([[q, b, x] * 3], mode="off", **{**options, "logit_bias": {b: 100}})


@pytest.mark.slow
def test_a_draft_that_goes_on_behind_a_stop_string_to_what_is_too_complex_ends_no_answer(pipeline: LLMPipeline):
    form = too_wide('start: "z" "q" ("a" | "b" wide)')
    z, q, b, x = (pipeline.tokenizer.encode(letter, False)[0] for letter in "zqbx")
    options = {"structured_output_config": form, "max_new_tokens": 8, "logit_bias": {b: 100}}
    for mode in ("off", "lookup", "suffix", "chained"):
        length = None if mode == "off" else 4
        asked = {"mode": mode, "num_assistant_tokens": length, **options}
        answer = pipeline.generate([[z, q, b, x] * 3], stop_strings={"q"}, include_stop_str_in_output=True, **asked)
        assert answer.generations[0].text == "zq"
        assert answer.generations[0].finish_reason == "stop"
        with pytest.raises(InvalidOption, match="make it simpler"):
            pipeline.generate([[z, q, b, x] * 3], **asked)


@pytest.mark.parametrize("given", [{}, {"regex": "a", "grammar": "b"}, {"regex": 7}, {"json_schema": {"type": "null"}}])
def test_exactly_one_form_is_taken_as_text(given):
    with pytest.raises(InvalidOption, match="structured_output_config"):
        StructuredOutputConfig(**given)


def test_what_makes_no_sense_with_a_form_is_refused():
    form = StructuredOutputConfig(regex="a+")
    with pytest.raises(InvalidOption, match="min_new_tokens=3 is not possible with structured_output_config"):
        GenerationConfig(min_new_tokens=3, structured_output_config=form)
    for value in ("a+", {"regex": "a+"}, 7):
        with pytest.raises(InvalidOption, match="give a StructuredOutputConfig"):
            GenerationConfig(structured_output_config=value)  # type: ignore[arg-type]
    assert hash(GenerationConfig(structured_output_config=form))


def test_a_grammar_that_no_token_can_write_ends_that_answer_alone(models: Models):
    """A vocabulary without letters cannot continue after the digit."""
    grammars = models.grammars
    asked = Asked((5, 6, 7), GenerationConfig(structured_output_config=StructuredOutputConfig(regex="[0-9]z")), 9)
    served = models.served()
    stuck, fine = served.request(asked, "auto"), served.request(replace(asked, config=GenerationConfig()), "auto")
    vocabulary = grammars._vocabulary
    assert stuck.constraint is not None
    assert vocabulary is not None
    stuck.constraint._mask = lambda: bytes(-(-(vocabulary.end + 1) // 8))  # type: ignore[method-assign]
    for request in (stuck, fine):
        served.engine.add(request)
    with pytest.raises(InvalidOption, match="No token of this model's vocabulary"):
        served.finish([stuck, fine])
    served.finish([fine])
    assert fine.finish_reason
    served.assert_nothing_leaked()


@pytest.mark.parametrize("rule", ["typical", "threshold", "rejection"])
def test_the_form_and_logprobs_hold_under_lossy_acceptance(models: Models, rule):
    parameters = {"rollback_threshold": 12.0} if rule == "threshold" else {}
    accepted: Counter[str] = Counter()
    for seed in range(6):
        config = GenerationConfig(
            structured_output_config=StructuredOutputConfig(regex="(yes|no), because [a-z ]{1,20}[.]"), logprobs=2,
            do_sample=seed > 2, temperature=1.5, rng_seed=seed, acceptance=rule, **parameters,
        )  # fmt: skip
        question = Asked(tuple(models.tokenizer.encode("Is it so? yes, because it is.\n")), config, 40)
        request = models.served().one(question, "draft")
        check_form(config, text_of(models, request), request.finish_reason == "stop")
        assert [entry.token for entry in request.logprobs] == request.new_tokens
        accepted.update(request.statistics.accepted_by)
    assert accepted["draft_model"] > 0


AFTER_MAIN = """
import threading
from outrider.models import embedded_pair
from outrider.pipelines import LLMPipeline, StructuredOutputConfig

pipeline = LLMPipeline(embedded_pair())
form = StructuredOutputConfig(json_schema='{"enum": ["yes", "no"]}')

def answer():
    threading.main_thread().join()
    print(pipeline.generate("Yes or no?", structured_output_config=form))

threading.Thread(target=answer).start()
"""


@pytest.mark.slow
def test_a_thread_that_outlives_the_main_thread_can_ask_for_a_form():
    done = subprocess.run([sys.executable, "-c", AFTER_MAIN], capture_output=True, text=True, timeout=300)
    assert json.loads(done.stdout) in ("yes", "no"), done.stderr
