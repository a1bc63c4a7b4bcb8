"""Every drafter is asked at every position of a finished answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from outrider.app.bench.replay import Replay
from outrider.pipelines import GenerationConfig, LLMPipeline
from outrider.pipelines.engine.request import Request
from outrider.pipelines.speculation.acceptance import Features
from outrider.pipelines.speculation.drafters.base import Proposal

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
    assert Replay([Fake("one", [[]] * 5)], None).foresight(PROMPT, ANSWER, GenerationConfig()).by_model == (False,) * 5


def test_the_real_drafters_foresee_what_they_drafted(embedded_pair: Path) -> None:
    """At a fixed draft length, accepted drafts in the trace must be foreseen at the same place."""
    pipeline = LLMPipeline(embedded_pair, cache_tokens=1024, exact=True)
    prompt = "Repeat this function:\ndef area(width, height):\n    size = width * height\n    return size"
    options = {"mode": "draft", "num_assistant_tokens": 4, "max_new_tokens": 40}
    answer = pipeline.generate(prompt, **options).generations[0]
    config = pipeline.get_generation_config().updated(options)
    tokens = pipeline.tokenizer.encode(f"<|user|>{prompt}<|end|><|assistant|>")
    assert len(tokens) == answer.stats.prompt_tokens
    foresight = Replay.load(pipeline.pair, 512).foresight(tokens, answer.token_ids, config)
    drafted = [at for at, source in enumerate(answer.sources) if source == "draft_model"]
    assert len(drafted) > 10
    assert all(foresight.by_model[at] for at in drafted)
    assert max(foresight.from_text) > 5  # the answer repeats the prompt
