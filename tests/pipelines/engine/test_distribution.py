"""Sampled tokens of the embedded pair follow the target's processed distribution, drafted ones too."""

from __future__ import annotations

from collections import Counter

import pytest

from outrider.pipelines.config import GenerationConfig
from outrider.pipelines.model.paged_request import BLOCK_SIZE

from .. import reference
from ..chi_square import assert_follows
from ..real import Models
from ..requests import Asked

NUM_DRAWS = 400


def shared(models: Models, text: str) -> tuple[int, ...]:
    """The tokens of a prompt behind empty lines, of which all requests but the first read a single token: the others
    fill blocks of the cache."""
    tokens, line = (models.tokenizer.encode(each, add_special_tokens=False) for each in (text, "\n"))
    return (*line * (-(len(tokens) - 1) % BLOCK_SIZE), *tokens)


def odds_behind(models: Models, prompt, written, config) -> dict[int, float]:
    row = reference.model_logits(models.target)([*prompt, *written])
    return reference.probabilities(reference.survivors(reference.penalize(row, prompt, written, config), config))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "lookup", "draft", "head"])
@pytest.mark.parametrize(
    "options",
    [{"temperature": 1.5, "top_k": 8}, {"temperature": 1.3, "top_p": 0.9, "repetition_penalty": 1.2}],
    ids=["top-k", "top-p"],
)
def test_two_tokens_follow_the_targets_distribution(models: Models, mode, options):
    message = {"role": "user", "content": "Repeat this function.\n\ndef total(values):\n    return sum(values)\n"}
    text = models.tokenizer.apply_chat_template([message]) + "def "
    prompt = shared(models, text)
    drafted = 2 if mode in ("draft", "head") else None  # of so short an answer they may pay too little
    config = GenerationConfig(do_sample=True, num_assistant_tokens=drafted, **options)
    asked = [Asked(prompt, config.updated({"rng_seed": seed}), 3) for seed in range(NUM_DRAWS)]
    served = models.served()
    drawn = []
    for first in range(0, NUM_DRAWS, 50):
        drawn += served.all(asked[first : first + 50], [mode] * 50)
    firsts = Counter(request.new_tokens[0] for request in drawn)
    assert_follows(firsts, odds_behind(models, prompt, [], config))
    for token, _ in firsts.most_common(2):
        seconds = Counter(s.new_tokens[1] for s in drawn if s.new_tokens[0] == token and s.num_new > 1)
        assert_follows(seconds, odds_behind(models, prompt, [token], config))
    if mode in ("draft", "head"):
        sources = Counter(source for request in drawn for source in request.sources[:2])
        assert sources.total() > sources["target"] > 0, "nothing kept or nothing corrected proves little"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["draft", "head"])
def test_rejection_sampling_follows_the_targets_distribution_whatever_the_drafts_length(models: Models, mode):
    prompt = tuple(models.tokenizer.encode("def total(values):\n    return "))
    config = GenerationConfig(do_sample=True, temperature=1.3, top_k=6, mode=mode, acceptance="rejection")
    asked = [Asked(prompt, config.updated({"rng_seed": seed}), 3) for seed in range(NUM_DRAWS)]
    served, drawn = models.served(), []
    for first in range(0, NUM_DRAWS, 50):
        drawn += served.all(asked[first : first + 50], [mode] * 50)
    firsts = Counter(request.new_tokens[0] for request in drawn)
    assert_follows(firsts, odds_behind(models, prompt, [], config))
    for token, _ in firsts.most_common(2):
        seconds = Counter(s.new_tokens[1] for s in drawn if s.new_tokens[0] == token and s.num_new > 1)
        assert_follows(seconds, odds_behind(models, prompt, [token], config))
    sources = Counter(source for request in drawn for source in request.sources[1:])
    assert sources.total() > sources["target"] > 0, "nothing kept or nothing corrected proves little"
