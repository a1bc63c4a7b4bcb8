"""The embedded head drafts for us as it does for OpenVINO GenAI, which reads the same files."""

from __future__ import annotations

import openvino_genai
import pytest

from outrider.pipelines import LLMPipeline
from outrider.pipelines.model.processor import PRECISION, limited_properties

NUM_DRAFTED, NUM_TOKENS = 3, 60
PROMPTS = (
    "Repeat this function:\ndef area(width, height):\n    size = width * height\n    return size\n",
    'Complete this function:\ndef merge(left, right):\n    """Merge two sorted lists."""\n',
)


@pytest.mark.slow
def test_the_text_is_openvino_genais_and_as_many_drafts_are_accepted(embedded_pair):
    """Not always the same drafts: the rounding of its caches is another."""
    properties = {PRECISION: "f32"} | limited_properties()
    draft = openvino_genai.draft_model(str(embedded_pair / "head"), "CPU", **properties)
    genai = openvino_genai.LLMPipeline(
        str(embedded_pair / "target"), "CPU", draft_model=draft, scheduler_config=openvino_genai.SchedulerConfig(),
        **properties,
    )  # fmt: skip
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.num_assistant_tokens, config.ignore_eos = NUM_TOKENS, NUM_DRAFTED, True
    pipeline = LLMPipeline(embedded_pair, exact=True)
    for prompt in PROMPTS:
        options = {"max_new_tokens": NUM_TOKENS, "num_assistant_tokens": NUM_DRAFTED, "ignore_eos": True}
        ours = pipeline.generate([prompt], mode="head", **options).generations[0]
        theirs = genai.generate([prompt], config)
        assert ours.text == theirs.texts[0]
        accepted = theirs.extended_perf_metrics.get_num_accepted_tokens()
        assert accepted > NUM_TOKENS / 2, "GenAI does not read the head as it is meant"
        assert abs(ours.stats.accepted - accepted) <= NUM_TOKENS / 10
