"""What a grammar allows after a beginning does not depend on what was asked before, and is what it should be."""

from __future__ import annotations

import gc
import json
import random
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from llguidance import LLParserLimits

from outrider.pipelines import GenerationConfig, InvalidOption, StructuredOutputConfig
from outrider.pipelines.structured import grammars
from outrider.pipelines.structured.constraint import Constraint
from outrider.pipelines.structured.grammars import Grammars
from outrider.pipelines.text.token_bytes import TokenBytes

from .. import reference
from ..real import Models
from .structures import Structures, of_schema

END = 0


def constraint(models: Models, form: StructuredOutputConfig, **options: object) -> Constraint:
    options = {"eos_token_ids": {END}, **options}
    made = models.grammars.constraint(GenerationConfig(structured_output_config=form, **options))
    assert made is not None
    return made


def answers(asked: Constraint, beginning: list[int]) -> tuple[object, ...]:
    allowed = asked.allowed(beginning)
    ids = () if allowed is None else tuple(np.flatnonzero(allowed).tolist())
    return ids, asked.is_complete(beginning), asked.forced(beginning)


@pytest.mark.parametrize("seed", range(30))
def test_it_makes_no_difference_what_was_asked_before(models: Models, seed):
    """Forwards, back, and in leaps between drafts that begin alike."""
    rng, form = random.Random(seed), Structures(seed).any()
    walked = constraint(models, form)
    known: dict[tuple[int, ...], tuple[object, ...]] = {}
    beginning: list[int] = []
    for _ in range(60):
        found = answers(walked, beginning)
        assert known.setdefault(tuple(beginning), found) == found
        ids = found[0]
        assert isinstance(ids, tuple)
        if not ids or rng.random() < 0.2:
            beginning = list(rng.choice(list(known)))
            beginning = beginning[: rng.randint(0, len(beginning))]
            continue
        token = rng.choice(ids)
        assert walked.allows(beginning, token)
        beginning = [*beginning, token]
    for asked in rng.sample(sorted(known), min(6, len(known))):
        assert answers(constraint(models, form), list(asked)) == known[asked]


@pytest.mark.parametrize("seed", range(4))
def test_what_drafts_led_to_counts_towards_no_limit(models: Models, monkeypatch: pytest.MonkeyPatch, seed):
    """The lexer's states add up over all that is asked, and are many here: two for each letter that is in doubt."""
    few = LLParserLimits(verbose_errors=False, max_lexer_states=200)
    monkeypatch.setattr(grammars, "LLParserLimits", lambda **_: few)
    rng, form = random.Random(seed), StructuredOutputConfig(regex="[ab]*a[ab]{9}c")
    a, b = (models.tokenizer.encode(letter, add_special_tokens=False)[-1] for letter in "ab")
    drafted = constraint(models, form)
    for _ in range(100):
        beginning = [rng.choice((a, b)) for _ in range(rng.randrange(14))]
        assert answers(drafted, beginning) == answers(constraint(models, form), beginning)
    with pytest.raises(InvalidOption, match="make it simpler"):
        answers(drafted, [rng.choice((a, b)) for _ in range(200)])


@pytest.mark.parametrize("seed", range(8))
def test_what_is_allowed_is_what_can_still_match(models: Models, seed):
    rng, pattern = random.Random(seed), Structures(seed).open_regex()
    asked = constraint(models, StructuredOutputConfig(regex=pattern))
    tokens = [models.tokenizer.decode([i]) for i in range(len(models.tokenizer.vocabulary))]
    expected = reference.matching(pattern, tokens)
    beginning: list[int] = []
    while not asked.is_complete(beginning) and len(beginning) < 12:
        may_follow, may_end = expected(beginning)
        allowed = asked.allowed(beginning)
        assert allowed is not None
        ends = {END} if may_end else set()
        assert set(np.flatnonzero(allowed).tolist()) == may_follow | ends, (pattern, beginning)
        for token in rng.sample(range(len(tokens)), 20):
            assert asked.allows(beginning, token) == bool(allowed[token])
        beginning.append(rng.choice(sorted(may_follow)))


def test_only_ends_without_text_end_an_answer_and_nothing_follows_them(models: Models):
    form = StructuredOutputConfig(regex="[ab]+")
    a, b, other = (models.tokenizer.encode(text)[0] for text in "ab!")
    asked = constraint(models, form, eos_token_ids={END, other}, stop_token_ids={2, b})
    assert not asked.allows([], END)
    assert [asked.allows([a], token) for token in (END, 2, 3, b, other)] == [True, True, False, True, False]
    for over in ([a, END], [a, END, b], [a, 2, a, a]):
        assert asked.is_complete(over)
        assert asked.allowed(over) is None
        assert asked.forced(over) is None
        assert not asked.allows(over, a)
    assert not asked.is_complete([a, b])
    endless = constraint(models, form, ignore_eos=True)
    assert not endless.allows([a], END)
    assert not endless.allows([a], 10**9)


def test_what_is_forced_is_written_as_the_model_writes_it(models: Models):
    text = " because the quick brown fox jumps over it"
    encode = models.tokenizer.encode
    asked = constraint(models, StructuredOutputConfig(regex=f"(yes|no),{text}"))
    beginning = encode("yes,")
    for token in encode(text):
        assert asked.forced(beginning) == token
        allowed = asked.allowed(beginning)
        assert allowed is not None
        assert np.flatnonzero(allowed).tolist() == [token]
        beginning.append(token)
    assert asked.forced(beginning) is None
    assert asked.is_complete(beginning)


def test_a_long_text_is_forced_piece_by_piece_to_the_same_tokens(models: Models, monkeypatch):
    text = "".join(random.Random(3).choices(["hello ", "x = 1, ", "foo(bar)", "; ", "naïve ☕ "], k=120))

    def forced() -> list[int]:
        asked = constraint(models, of_schema({"const": text}))
        written: list[int] = []
        while not asked.is_complete(written):
            token = asked.forced(written)
            assert token is not None
            written.append(token)
        return written

    by_pieces = forced()
    assert json.loads(models.tokenizer.decode(by_pieces)) == text
    monkeypatch.setattr(grammars, "LONGEST_FORCED", 10**6)
    assert forced() == by_pieces


def test_the_vocabulary_is_read_once_however_many_ask(models: Models, monkeypatch):
    read = []
    reading = TokenBytes.read
    monkeypatch.setattr(TokenBytes, "read", lambda tokenizer: read.append(1) or reading(tokenizer))
    made = Grammars(models.tokenizer)
    assert made.constraint(GenerationConfig()) is None
    assert not read, "not before it is needed"
    config = GenerationConfig(structured_output_config=StructuredOutputConfig(regex="a+"))
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: made.constraint(config), range(16)))
    assert read == [1]


def test_what_is_read_of_a_vocabulary_is_freed_with_its_last_use(models: Models):
    made = Grammars(models.tokenizer)
    constraint = made.constraint(GenerationConfig(structured_output_config=StructuredOutputConfig(regex="a+")))
    assert made._vocabulary is not None
    assert constraint is not None
    read, tokenizer = weakref.ref(made._vocabulary), made._vocabulary.tokenizer
    assert tokenizer.greedy_tokenize("def") == tokenizer.tokenize_str("def")
    del made, tokenizer
    assert constraint.allowed(()) is not None
    del constraint
    gc.collect()
    assert read() is None
