"""Options of a request that OpenVINO GenAI has and Outrider does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openvino_genai

from .errors import UnknownOption

# The values at which they change nothing. Beams come first: other options are given because of them.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "no_repeat_ngram_size": (0, openvino_genai.GenerationConfig().no_repeat_ngram_size),
    "echo": (False,),
    "assistant_confidence_threshold": (0.0,),
    "tree_depth": (0,),
    "pruning_ratio": (0,),
    "adapters": (None,),
    "parsers": ([],),
    "return_omni_outputs": (False,),
}
# Those that change nothing as long as num_beams, tree_depth and pruning_ratio do not.
DEPENDENT = frozenset(
    {"num_beam_groups", "diversity_penalty", "length_penalty", "stop_criteria", "branching_factor", "relevance_weight"}
)


def without_genais(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that only OpenVINO GenAI has. Raises UnknownOption if one of these would change
    something."""
    for name, neutral in NEUTRAL.items():
        if name in options and (value := options[name]) not in neutral:
            reason = "Outrider has no beam search" if name == "num_beams" else "only OpenVINO GenAI has this option"
            raise UnknownOption(f"{name}={value!r} is not supported: {reason}, so leave it at {neutral[0]!r}.")
    return {name: value for name, value in options.items() if name not in NEUTRAL and name not in DEPENDENT}
