"""Log-probabilities: those of the model's raw logits, whatever is drafted, given with the tokens that they belong
to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines import LLMPipeline
from outrider.pipelines.engine.logprobs import TokenLogprobs

from .. import reference
from ..real import PAIR_MODES, Models, in_ways
from ..requests import Asking

LOGITS = st.lists(st.sampled_from([-700.0, -3.0, -1.5, 0.0, 0.25, 2.0, 4.0, 88.0]), min_size=1, max_size=24)


@given(LOGITS, st.integers(1, 20), st.data())
def test_they_are_a_log_softmax_and_the_likeliest_come_first(values, num_top, data):
    token = data.draw(st.integers(0, len(values) - 1))
    found = TokenLogprobs.of(np.array(values, np.float32), token, num_top)
    expected = reference.logprobs(values)
    best = sorted(range(len(values)), key=lambda i: (-values[i], i))[:num_top]
    assert (found.token, [i for i, _ in found.top]) == (token, best)
    assert [found.logprob, *(p for _, p in found.top)] == pytest.approx([expected[i] for i in [token, *best]], abs=1e-9)


@in_ways("seed", quick=[600, 601], skip=[600], exit=[600])
def test_they_are_those_of_the_slow_decoder_in_every_mode(models: Models, seed):
    asking = Asking(models.tokenizer, seed)
    logits = reference.model_logits(models.target)
    for mode in models.modes:
        asked = asking.question(max_new_tokens=10)
        asked = replace(asked, config=asked.config.updated({"logprobs": 3}))
        request = models.served().one(asked, mode)
        assert len(request.logprobs) == request.num_new
        for place, found in enumerate(request.logprobs):
            expected = reference.logprobs(logits([*asked.prompt, *request.new_tokens[:place]]))
            assert found.token == request.new_tokens[place]
            assert found.logprob == pytest.approx(expected[found.token], abs=1e-9)
            best = sorted(range(len(expected)), key=lambda i: -expected[i])[:3]
            assert [p for _, p in found.top] == pytest.approx([expected[i] for i in best], abs=1e-9)


@pytest.mark.slow
def test_none_are_given_where_none_were_asked_for(pipeline: LLMPipeline):
    assert pipeline.generate("x", max_new_tokens=3).generations[0].logprobs == ()
    assert all(piece.logprobs == () for piece in pipeline.stream("x", max_new_tokens=3))


@pytest.mark.parametrize("mode", PAIR_MODES)
def test_a_piece_has_those_of_its_own_tokens(pipeline: LLMPipeline, mode):
    """Text that could begin a stop string is held back."""
    options = {"max_new_tokens": 40, "logprobs": 2, "mode": mode, "stop_strings": {"return widthx", "\n\n\n"}}
    prompt = "Repeat this function:\ndef area(width, height):\n    return width * height"
    pieces = list(pipeline.stream(prompt, **options))
    whole = pipeline.generate(prompt, **options).generations[0]
    for piece in pieces:
        assert tuple(each.token for each in piece.logprobs) == piece.token_ids
    assert tuple(each for piece in pieces for each in piece.logprobs) == whole.logprobs
    assert tuple(each.token for each in whole.logprobs) == whole.token_ids
    assert len(pieces) > 1
