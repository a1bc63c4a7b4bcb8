"""Same seed, same text, on the embedded pair: whatever is drafted, batched, cached, cut, cancelled or broken."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from outrider.pipelines.config import GenerationConfig
from outrider.pipelines.engine import scheduler as scheduler_module
from outrider.pipelines.speculation.owed_rows import OwedRows

from ..real import PAIR_MODES, Models, and_in, in_ways, same, same_as_far_as_written
from ..requests import Asked, Asking
from ..speculation.broken_drafters import SABOTAGE, BrokenDrafter

HOT = {"do_sample": True, "temperature": 1.2, "rng_seed": 8}
NUM_GROUPS = 12
LENGTHS = (1, 2, 3, 30, 31, 32, 33, 34, 63, 64, 65, 66, 96, 511, 512, 513, 514, 1025)  # of prompts
GROUP_SIZE = 24


def tokens_of(requests) -> list[list[int]]:
    return [request.new_tokens for request in requests]


@in_ways("seed", quick=[0], slow=range(1, NUM_GROUPS), skip=[0], exit=[0], heads=[1])
def test_mode_batch_and_cache_change_no_token(models: Models, seed):
    rng, asking = random.Random(seed), Asking(models.tokenizer, seed)
    size = GROUP_SIZE if models.modes == PAIR_MODES else GROUP_SIZE // 3
    asked = [asking.question() for _ in range(size)]
    plain = [models.served().one(question) for question in asked]
    seen: dict[str, Counter[str]] = {mode: Counter() for mode in models.modes[1:]}

    def note(requests) -> None:
        for request in requests:
            if request.config.mode in seen:
                statistics = request.statistics
                seen[request.config.mode]["accepted"] += statistics.accepted
                seen[request.config.mode]["rejected"] += statistics.drafted - statistics.accepted

    drafting = models.modes[1:] * size
    alone = [models.served().one(question, mode) for question, mode in zip(asked, drafting, strict=False)]
    same(alone, plain, asked, "alone, cold")
    note(alone)
    # Whatever pays here and now; and once so hot that the noise decides, which all share: then any head is often right.
    hot = replace(asked[0], config=GenerationConfig(do_sample=True, temperature=99.0, rng_seed=seed))
    always = [replace(each, config=each.config.updated({"num_assistant_tokens": 4})) for each in (hot, *asked[:4])]
    expected = [models.served().one(hot), *plain[:4]]
    for mode in models.modes[1:]:
        drafted = [models.served().one(question, mode) for question in always]
        same(drafted, expected, always, f"{mode}, four tokens drafted in every pass")
        note(drafted)

    served = models.served()
    batch = served.all(asked, [rng.choice(models.modes) for _ in asked])
    same(batch, plain, asked, "all at once, cold")
    note(batch)

    order = rng.sample(range(size), size)
    warm = [served.one(asked[i], rng.choice(models.modes)) for i in order[: size // 3]]
    same(warm, [plain[i] for i in order[: len(warm)]], [asked[i] for i in order[: len(warm)]], "one by one, warm")
    again = [replace(asked[i], config=asking.config()) for i in order]  # other settings, the same prompts
    modes = [rng.choice(models.modes) for _ in again]
    same(served.all(again, modes), models.served().all(again, ["off"] * len(again)), again, "other settings, warm")
    served.assert_nothing_leaked()
    assert all(counts["accepted"] for counts in seen.values()), f"this proves little: {seen}"
    assert any(counts["rejected"] for counts in seen.values()), f"this proves little: {seen}"


@in_ways("seed", quick=range(100, 104), skip=[101], exit=[101], heads=[100])
def test_the_answer_is_that_of_the_slow_reference_decoder(models: Models, seed):
    asking = Asking(models.tokenizer, seed)
    asked = [asking.question(max_new_tokens=14) for _ in range(8)]
    served = models.served()
    fast = served.all(asked, [models.modes[i % len(models.modes)] for i in range(len(asked))])
    for request, question in zip(fast, asked, strict=True):
        answer = models.slowly(question)
        assert request.new_tokens == answer.token_ids, f"{question} with {question.prompt}"
        assert request.finish_reason == answer.finish_reason


@in_ways("length", slow=LENGTHS, skip=[1, 33, 513], exit=[2, 32, 65], heads=[33])
def test_prompts_of_every_length_around_a_border(models: Models, length):
    asking, rng = Asking(models.tokenizer, length), random.Random(length)
    prompt = (asking.prompt("edit") * length)[-length:] if length > 3 else asking.prompt("code")[:1] * length
    assert len(prompt) == length
    sampled = GenerationConfig(do_sample=True, rng_seed=length, num_assistant_tokens=rng.randint(2, 12))
    asked = [Asked(prompt, config, 6) for config in (GenerationConfig(), sampled)]
    expected = [models.slowly(question).token_ids for question in asked]
    for i, mode in enumerate(models.modes):
        served, first = models.served(), (i + length) % 2
        assert served.one(asked[first], mode).new_tokens == expected[first], f"{mode}, cold"
        assert served.one(asked[first], mode).new_tokens == expected[first], f"{mode}, warm"
        together = served.all([*asked, replace(asked[1], answer=1)], [mode, mode, "chained"])
        assert tokens_of(together[:2]) == expected, f"{mode}, warm, beside others"
        served.assert_nothing_leaked()


@and_in("skip")
def test_prompts_of_one_token(models: Models):
    config = GenerationConfig(do_sample=True, temperature=1.5)
    asked = [Asked((token,), config, 2) for token in random.Random(1).sample(range(models.target.vocabulary_size), 30)]
    expected = [models.slowly(question).token_ids for question in asked]
    for mode in models.modes:
        assert tokens_of(models.served().all(asked, [mode] * len(asked))) == expected


@in_ways("rows", slow=[2, 3, 5, 31, 32, 33, 50, 64, 127], skip=[3], exit=[50])
def test_prompts_may_be_cut_into_passes_anyhow(models: Models, monkeypatch, rows):
    asking = Asking(models.tokenizer, rows)
    asked = [asking.question(max_new_tokens=8) for _ in models.modes]
    whole = (asking.prompt("code") * 200)[: 600 if rows > 30 else 150]
    asked.append(Asked(whole, asking.config(), 8))
    plain = [models.served().one(question) for question in asked]
    monkeypatch.setattr(scheduler_module, "PREFILL_ROWS", rows)
    for modes in (["off"] * len(asked), [*models.modes, "chained"]):
        same(models.served().all(asked, modes), plain, asked, f"passes of {rows}")


@in_ways("seed", quick=range(2), skip=[0])
def test_what_prompts_are_given_for_the_drafts_beside_them_changes_no_token(models: Models, monkeypatch, seed):
    asking, rng, chunks = Asking(models.tokenizer, seed), random.Random(seed), set()
    asked = [asking.question(max_new_tokens=24) for _ in models.modes]
    asked += [Asked((asking.prompt("code") * 200)[n:][:500], asking.config(), 8) for n in range(2)]
    plain = [models.served().one(question) for question in asked]
    monkeypatch.setattr(OwedRows, "number", property(lambda owed: rng.choice((0, 1, 5, 32, 50))))
    give = OwedRows.give

    def noting(owed, cost, num_others, num_read, num_given):
        chunks.add(num_given)
        return give(owed, cost, num_others, num_read, num_given)

    monkeypatch.setattr(OwedRows, "give", noting)
    same(models.served().all(asked, [*models.modes, "auto", "off"]), plain, asked, "read beside drafts")
    assert len(chunks) > 2, "nothing was given that could have changed a token"


@in_ways("seed", slow=range(200, 206), skip=[200], exit=[203])
def test_stops_inside_a_draft(models: Models, seed):
    rng, asking = random.Random(seed), Asking(models.tokenizer, seed)
    asked = []
    for _ in range(6):
        question = replace(asking.question(), max_new_tokens=24)
        answer = models.served().one(question).new_tokens
        text = models.tokenizer.decode(answer)
        first = rng.randrange(len(text)) if text else 0
        stop_string = {text[first : first + rng.randint(1, 6)] or "x", "never there"}
        asked.append(replace(question, config=question.config.updated({"stop_strings": stop_string})))
        asked.append(replace(question, config=question.config.updated({"stop_token_ids": {rng.choice(answer)}})))
    plain = [models.served().one(question) for question in asked]
    assert {request.finish_reason for request in plain} >= {"stop"}
    written = [models.slowly(question).text for question in asked if question.config.stop_strings]
    for mode in models.modes[1:]:
        served = models.served()
        stopped = served.all(asked, [mode] * len(asked))
        same(stopped, plain, asked, mode)
        texts = ["".join(span.text for span in s.text.take(final=True)) for s in stopped if s.text]
        assert texts == written
        served.assert_nothing_leaked()


@in_ways("settings", slow=[{}, HOT], exit=[HOT])
def test_a_bias_works_alike_in_every_mode(models: Models, settings):
    """On a text that is mostly copied, so that drafts propose what the bias forbids."""
    asking = Asking(models.tokenizer, 8)
    prompt = asking.prompt("edit")
    plain = models.served().one(Asked(prompt, GenerationConfig(**settings), 16)).new_tokens
    banned, rare = Counter(plain).most_common(1)[0][0], next(i for i in range(100, 2000) if i not in plain)
    biases = [{banned: -100}, {banned: -20, rare: 18}, {rare: 100}]
    asked = [Asked(prompt, GenerationConfig(logit_bias=bias, **settings), 16) for bias in biases]
    expected = [models.slowly(question).token_ids for question in asked]
    assert banned not in expected[0]
    assert expected[1] != plain
    assert set(expected[2]) == {rare}
    for mode in models.modes:
        assert tokens_of(models.served().all(asked, [mode] * len(asked))) == expected, mode
        assert [models.served().one(question, mode).new_tokens for question in asked] == expected, mode


@pytest.mark.slow
@and_in("exit")
def test_answers_of_one_prompt_at_once_are_those_alone_and_differ(models: Models):
    prompt = Asking(models.tokenizer, 5).prompt("code") * 3
    config = GenerationConfig(do_sample=True, temperature=1.3, rng_seed=5)
    asked = [Asked(prompt, config, 24, answer) for answer in range(6)]
    plain = [models.served().one(question) for question in asked]
    assert len({tuple(tokens) for tokens in tokens_of(plain)}) == len(asked)
    for mode in models.modes:
        same(models.served().all(asked, [mode] * len(asked)), plain, asked, mode)


@pytest.mark.slow
@and_in("skip")
def test_a_cache_that_holds_few_requests_gives_the_same_answers(models: Models):
    """Blocks are handed on and beginnings forgotten all the time."""
    asking = Asking(models.tokenizer, 77)
    asked = [asking.question(max_new_tokens=20) for _ in range(20)]
    asked = [replace(question, prompt=question.prompt[:120]) for question in asked]
    plain = [models.served().one(question) for question in asked]
    served = models.served(num_blocks=11)
    modes = [models.modes[i % len(models.modes)] for i in range(len(asked))]
    same(served.all(asked, modes), plain, asked, "small cache")
    same(served.all(asked, modes[::-1]), plain, asked, "small cache, used")
    served.assert_nothing_leaked()


@pytest.mark.slow
@in_ways("seed", quick=range(300, 303), exit=[300])
def test_cancelled_requests_leave_a_cache_that_serves_the_same_answers(models: Models, seed):
    rng, asking = random.Random(seed), Asking(models.tokenizer, seed)
    asked = [asking.question() for _ in range(10)]
    plain = [models.served().one(question) for question in asked]
    served = models.served()
    first = served.some_cancelled(asked, [rng.choice(models.modes) for _ in asked], rng)
    same_as_far_as_written(first, plain)
    same(served.all(asked, [rng.choice(models.modes) for _ in asked]), plain, asked, "after cancellations")
    served.assert_nothing_leaked()


@pytest.mark.parametrize("sabotage", SABOTAGE)
def test_a_sabotaged_drafter_changes_nothing(models: Models, sabotage):
    asking = Asking(models.tokenizer, 9)
    asked = [asking.question(max_new_tokens=12) for _ in range(4)]
    plain = models.served().all(asked, ["off"] * 4)
    served = models.served(drafters={"draft": BrokenDrafter(SABOTAGE[sabotage])})
    same(served.all(asked, ["draft"] * 4), plain, asked, sabotage)
    assert served.pools[0].num_free == served.pools[0].num_blocks
