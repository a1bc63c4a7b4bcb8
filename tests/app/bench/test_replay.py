"""Every drafter is asked at every position of a finished answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.app.bench.replay import Replay
from outrider.pipelines import GenerationConfig, LLMPipeline
from outrider.pipelines.engine.request import Request
from outrider.pipelines.speculation.acceptance import Features
from outrider.pipelines.speculation.drafters.base import Proposal
from outrider.pipelines.speculation.runtime import Reading

PROMPT, ANSWER = [7, 8], [1, 2, 3, 4, 5]


class Fake:
    """Proposes what stands at the position in `script`, and notes what was asked for and forgotten."""

    def __init__(self, name: str, script: Sequence[Sequence[int]]) -> None:
        self.name = name
        self.script = script
        self.num_asked = 0
        self.released: list[Request] = []

    def propose(self, request: Request, ahead: Sequence[int] = ()) -> Iterator[Proposal]:
        assert request.tokens == [*PROMPT, *ANSWER[: request.num_new]]
        for token in self.script[request.num_new]:
            self.num_asked += 1
            yield Proposal(token, self.name, Features("fake"))

    def num_behind(self, request: Request, ahead: Sequence[int] = ()) -> int:
        return 0

    def release(self, request: Request) -> None:
        self.released.append(request)


def test_the_foresight_is_what_the_drafters_knew() -> None:
    one = Fake("one", [[1, 2, 9, 4], [], [3], [9], [5, 6]])
    two = Fake("two", [[9], [2, 3, 4, 5], [], [], []])
    model = Fake("model", [[1, 2], [9, 9], [3, 3], [4, 4], [9, 9]])
    foresight = Replay([one, two], model).foresight(PROMPT, ANSWER, GenerationConfig())
    assert foresight.num_prompt_tokens == 2
    assert foresight.from_text == (2, 4, 1, 0, 1)
    assert foresight.by_model == (True, False, True, True, False)
    assert model.num_asked == 5  # one token at each position
    assert [len(drafter.released) for drafter in (one, two, model)] == [1, 1, 1]


def test_a_pair_without_a_draft_model_foresees_from_the_text_only() -> None:
    foresight = Replay([Fake("one", [[]] * 5)]).foresight(PROMPT, ANSWER, GenerationConfig())
    assert foresight.by_model == (False,) * 5
    assert foresight.from_start == {}


class Reader(Fake):
    """Notes the results that it is handed, and when."""

    def __init__(self, name: str, script: Sequence[Sequence[int]]) -> None:
        super().__init__(name, script)
        self.logits: list[tuple[list[int], list[float]]] = []
        self.states: list[tuple[int, list[float]]] = []

    def read_logits(self, tokens: Sequence[int], logits: np.ndarray) -> None:
        self.logits.append((list(tokens), logits[:, 0].tolist()))

    def read(self, request: Request, start: int, states: np.ndarray) -> None:
        assert start + len(states) == len(request.tokens) - 1, "what a run has computed by then"
        self.states.append((start, states[:, 0].tolist()))


class Target:
    """Puts out the position of each token."""

    BLOCKS = (5, 3)

    @contextmanager
    def reading(self, tokens: Sequence[int], num_rows: int) -> Iterator[Reading]:
        assert tokens == [*PROMPT, *ANSWER[:-1]]
        positions = np.arange(len(tokens), dtype=np.float32)[:, np.newaxis]
        yield Reading(positions[-num_rows:], positions, self.BLOCKS)


def test_drafters_that_read_results_have_those_that_a_run_has_had() -> None:
    text, head = Reader("recycling", [[], [2], [], [], []]), Reader("head", [[], [2, 3, 9], [3], [9], [5]])
    foresight = Replay([text], head=head, target=Target()).foresight(PROMPT, ANSWER, GenerationConfig())
    assert foresight.from_text == (0, 1, 0, 0, 0)
    assert foresight.from_start == {"head": (0, 2, 1, 0, 1)}
    assert text.logits == [([8], [1.0]), ([1], [2.0]), ([2], [3.0]), ([3], [4.0])]
    assert head.states == [(0, [0.0, 1.0]), (2, [2.0]), (3, [3.0]), (4, [4.0])]
    assert len(text.released) == len(head.released) == 1


class InTheCache(Fake):
    """Writes into the target's cache, and forgets what it has written when it is released."""

    lengths: list[int]

    def propose(self, request: Request, ahead: Sequence[int] = ()) -> Iterator[Proposal]:
        assert request.table.blocks == [*Target.BLOCKS]
        assert len(self.released) == len(self.lengths), "rows of an earlier draft are not taken over"
        self.lengths.append(len(request.tokens))
        return super().propose(request, ahead)


def test_the_target_is_asked_where_nothing_it_has_overwritten_is_read_again() -> None:
    itself = InTheCache("layer_skipping", [[1], [2, 3, 9], [9], [4, 5, 6], []])
    itself.lengths = []
    replay = Replay([Fake("one", [[]] * 5)], itself=itself, target=Target())
    foresight = replay.foresight(PROMPT, ANSWER, GenerationConfig())
    assert foresight.from_start == {"layer_skipping": (1, 2, 0, 2, 0)}
    assert itself.lengths == [6, 5, 4, 3, 2]


@pytest.fixture(scope="module")
def pairs(embedded_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """By mode, a pair whose models draft so."""
    folder = tmp_path_factory.mktemp("pairs")
    models = json.loads((embedded_pair / "pair.json").read_text(encoding="utf-8"))["models"]
    splits: dict[str, dict[str, Any]] = {"skip": {"skip_layers": [3]}, "exit": {"exit_layer": 5}}
    for mode, way in splits.items():
        (folder / mode).mkdir()
        (folder / mode / "target").symlink_to(embedded_pair / "target")
        about = {"models": {"target": models["target"] | way}}
        (folder / mode / "pair.json").write_text(json.dumps(about), encoding="utf-8")
    return {"draft": embedded_pair, "head": embedded_pair} | {mode: folder / mode for mode in splits}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "source"),
    [("draft", "draft_model"), ("head", "head"), ("skip", "layer_skipping"), ("exit", "early_exit")],
)
def test_the_real_drafters_foresee_what_they_drafted(pairs: Mapping[str, Path], mode: str, source: str) -> None:
    """At a fixed draft length, accepted drafts in the trace must be foreseen at the same place."""
    pipeline = LLMPipeline(pairs[mode], cache_tokens=1024, exact=True)
    prompt = "Repeat this function:\ndef area(width, height):\n    size = width * height\n    return size"
    options = {"mode": mode, "num_assistant_tokens": 4, "max_new_tokens": 40}
    answer = pipeline.generate(prompt, **options).generations[0]
    config = pipeline.get_generation_config().updated(options)
    tokens = pipeline.tokenizer.encode(f"<|user|>{prompt}<|end|><|assistant|>")
    assert len(tokens) == answer.stats.prompt_tokens
    foresight = Replay.load(pipeline.pair, 512, pipeline.speculation).foresight(tokens, answer.token_ids, config)
    drafted = [at for at, each in enumerate(answer.sources) if each == source]
    assert len(drafted) > 5
    if mode == "draft":
        assert all(foresight.by_model[at] for at in drafted)
    for at in drafted if mode != "draft" else ():
        begin = max(before for before in range(at) if answer.sources[before] != source) + 1
        assert foresight.from_start[source][begin] > at - begin
    assert max(foresight.from_text) > 5  # the answer repeats the prompt
