"""The embedded head drafts for us as it does for OpenVINO GenAI, which reads the same files."""

from __future__ import annotations

import pytest

from outrider.pipelines import LLMPipeline
from outrider.pipelines.model.processor import PRECISION
from tests.genai_with_head import GenaiWithHead

NUM_DRAFTED, NUM_TOKENS = 3, 60
PROMPTS = (
    "Repeat this function:\ndef area(width, height):\n    size = width * height\n    return size\n",
    'Complete this function:\ndef merge(left, right):\n    """Merge two sorted lists."""\n',
)


@pytest.mark.slow
def test_the_text_is_openvino_genais_and_as_many_drafts_are_accepted(embedded_pair):
    """Not always the same drafts: the rounding of its caches is another."""
    options = {"max_new_tokens": NUM_TOKENS, "num_assistant_tokens": NUM_DRAFTED, "ignore_eos": True}
    genai, pipeline = GenaiWithHead(embedded_pair, **{PRECISION: "f32"}), LLMPipeline(embedded_pair, exact=True)
    for prompt in PROMPTS:
        (ours,) = pipeline.generate([prompt], mode="head", **options).generations
        text, accepted = genai.generate(prompt, **options)
        assert ours.text == text
        assert accepted > NUM_TOKENS / 2, "GenAI does not read the head as it is meant"
        assert abs(ours.stats.accepted - accepted) <= NUM_TOKENS / 10
