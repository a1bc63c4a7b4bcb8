"""The embedded pair's models, with an engine of its own for each test: a fresh block pool is a cold cache."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from outrider.pipelines.config import MODES
from outrider.pipelines.engine.block_pool import BlockPool
from outrider.pipelines.engine.engine import Engine
from outrider.pipelines.engine.request import Request
from outrider.pipelines.model.heads.head_kind import open_head, tapped_layers
from outrider.pipelines.model.heads.head_model import HeadModel
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.paged_request import BLOCK_SIZE
from outrider.pipelines.model.pair import Pair, context_length, num_layers
from outrider.pipelines.model.split_model import SplitModel
from outrider.pipelines.model.tuning import load_target
from outrider.pipelines.speculation.drafter_set import DrafterSet
from outrider.pipelines.speculation.drafters.base import Drafter
from outrider.pipelines.speculation.drafters.draft_model import DraftModel
from outrider.pipelines.speculation.drafters.head import Head
from outrider.pipelines.speculation.drafters.prompt_lookup import PromptLookup
from outrider.pipelines.speculation.drafters.recycling import TokenRecycling
from outrider.pipelines.speculation.drafters.self_speculative import EXIT, SKIPPING, SelfSpeculative
from outrider.pipelines.speculation.drafters.suffix import Suffix
from outrider.pipelines.speculation.loaded_drafting import draft_properties
from outrider.pipelines.speculation.planner import Planner
from outrider.pipelines.structured.grammars import Grammars
from outrider.pipelines.text.tokenizer import TextStream, Tokenizer
from tests.drafting_pairs import HEADS

from . import reference
from .fakes import acceptance, mode_drafters
from .requests import Asked
from .serving import COST

NUM_BLOCKS = 320
PAIR_MODES = tuple(mode for mode in MODES if mode not in ("skip", "exit"))  # of the embedded pair
EMBEDDED = "embedded"


def in_ways(
    name: str,
    quick: Iterable[object] = (),
    slow: Iterable[object] = (),
    heads: Iterable[object] = (),
    **itself: Iterable[object],
) -> pytest.MarkDecorator:
    """Parametrize a test by the pair that its fixture `models` holds, and by values of `name`.

    quick, slow: values for the embedded pair, in daily work and besides.
    heads: slow ones for the pairs with heads of the other kinds.
    itself: "skip" and "exit", slow ones for the pairs whose target drafts by itself.
    """
    given = [pytest.param(EMBEDDED, value, id=str(value)) for value in quick]
    given += [pytest.param(EMBEDDED, value, id=str(value), marks=pytest.mark.slow) for value in slow]
    others = [(way, value) for way, values in itself.items() for value in values] + [*product(HEADS, heads)]
    given += [pytest.param(way, value, id=f"{way}-{value}", marks=pytest.mark.slow) for way, value in others]
    return pytest.mark.parametrize(("models", name), given, indirect=["models"])


def and_in(*ways: str) -> pytest.MarkDecorator:
    """Run a test with the embedded pair, and as a slow one with those that draft in these ways."""
    others = [pytest.param(way, marks=pytest.mark.slow) for way in ways]
    return pytest.mark.parametrize("models", [EMBEDDED, *others], indirect=True)


@dataclass(frozen=True, slots=True)
class Models:
    """modes: those to try, plain decoding first."""

    target: PagedModel
    draft: PagedModel | None
    head: HeadModel | None
    draft_context: int
    tokenizer: Tokenizer
    grammars: Grammars
    modes: tuple[str, ...] = PAIR_MODES

    @classmethod
    def load(cls, folder: Path, modes: tuple[str, ...] = PAIR_MODES) -> Models:
        pair = Pair.open(folder)
        taps = tapped_layers(pair.head, num_layers(pair.target)) if pair.head else ()
        target, _ = load_target(pair.target, NUM_BLOCKS, pair.properties, exact=True, taps=taps, skipping=pair.skipping)
        properties = draft_properties(target.precision, {})
        draft = PagedModel(pair.draft, NUM_BLOCKS, properties, exact=False) if pair.draft else None
        head = open_head(pair.head, pair.target, NUM_BLOCKS, properties) if pair.head else None
        draft_context = context_length(pair.draft) if pair.draft else 0
        tokenizer = Tokenizer(pair.target)
        return cls(target, draft, head, draft_context, tokenizer, Grammars(tokenizer), modes)

    def served(self, num_blocks: int = NUM_BLOCKS, drafters: Mapping[str, Drafter] | None = None) -> Served:
        """An engine with nothing in its cache."""
        pools = [BlockPool(num_blocks, BLOCK_SIZE) for _ in range(3)]
        made = acceptance()
        usual: dict[str, Drafter] = {
            "lookup": PromptLookup(),
            "suffix": Suffix(made),
            "recycling": TokenRecycling(self.target.vocabulary_size),
        }
        if self.draft is not None:
            usual["draft"] = DraftModel(self.draft, pools[1], self.draft_context)
        if self.head is not None:
            usual["head"] = Head(self.head, pools[2], self.target.vocabulary_size)
        if isinstance(self.target, SplitModel):
            mode, name = ("exit", EXIT) if self.target.skipping.is_exit else ("skip", SKIPPING)
            usual[mode] = SelfSpeculative(name, self.target, pools[0])
        drafter_set = DrafterSet(mode_drafters(drafters or usual), made, self.target.vocabulary_size)
        planner = Planner(drafter_set, made, replace(COST))
        return Served(Engine(self.target, pools[0], planner), pools, self.tokenizer, self.grammars)

    def slowly(self, asked: Asked) -> reference.Answer:
        """The reference decoder's answer; of structured output it knows regular expressions."""
        logits = reference.model_logits(self.target)
        allowed = None
        if (form := asked.config.structured_output_config) is not None:
            assert form.regex is not None
            tokens = [self.tokenizer.decode([i]) for i in range(len(self.tokenizer.vocabulary))]
            allowed = reference.matching(form.regex, tokens)
        return reference.decode(
            logits, asked.prompt, asked.config, asked.max_new_tokens, asked.answer, self.tokenizer.decode, allowed
        )


@dataclass(frozen=True, slots=True)
class Served:
    engine: Engine
    pools: list[BlockPool]
    tokenizer: Tokenizer
    grammars: Grammars

    def request(self, asked: Asked, mode: str) -> Request:
        config = asked.config.updated({"mode": mode})
        text = TextStream(self.tokenizer, config.stop_strings) if config.stop_strings else None
        constraint = self.grammars.constraint(config)
        return Request(asked.prompt, config, asked.max_new_tokens, text, asked.answer, constraint)

    def one(self, asked: Asked, mode: str = "off") -> Request:
        """Serve one question alone."""
        return self.all([asked], [mode])[0]

    def all(self, several: Iterable[Asked], modes: Iterable[str]) -> list[Request]:
        """Serve requests at once, to their ends."""
        requests = [self.request(asked, mode) for asked, mode in zip(several, modes, strict=True)]
        for request in requests:
            self.engine.add(request)
        self.finish(requests)
        return requests

    def some_cancelled(self, several: Iterable[Asked], modes: Iterable[str], rng: random.Random) -> list[Request]:
        """As `all`, with about half of the requests cancelled a step after they came."""
        requests = [self.request(asked, mode) for asked, mode in zip(several, modes, strict=True)]
        for request in requests:
            self.engine.add(request)
            self.engine.step()
            if rng.random() < 0.5:
                self.engine.cancel(request)
        self.finish(requests)
        return requests

    def finish(self, requests: Iterable[Request]) -> None:
        for request in requests:
            while not request.finished:
                self.engine.step()
            if request.error is not None:
                raise request.error

    def assert_nothing_leaked(self) -> None:
        assert [pool.num_free for pool in self.pools] == [pool.num_blocks for pool in self.pools]


def same(requests: Iterable[Request], expected: Iterable[Request], asked: Iterable[Asked], what: str) -> None:
    for request, plain, question in zip(requests, expected, asked, strict=True):
        assert request.new_tokens == plain.new_tokens, f"{what}: {question} with {question.prompt}"
        assert request.finish_reason == plain.finish_reason, f"{what}: {question} with {question.prompt}"
        assert request.logprobs == plain.logprobs, f"{what}: {question} with {question.prompt}"


def same_as_far_as_written(requests: Iterable[Request], expected: Iterable[Request]) -> None:
    for request, plain in zip(requests, expected, strict=True):
        assert request.new_tokens == plain.new_tokens[: request.num_new]
