"""Acceptance by depth is what drafting token by token finds."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

from outrider.export.distill import Sample
from outrider.export.distill.eagle3 import draft_ids, new_head
from outrider.export.distill.head import read_target
from outrider.export.distill.mtp import Mtp
from outrider.models.pyscout import corpus, depth, head_copying, mtp_copying, tokenizer
from outrider.models.pyscout.depth import DEPTH, draft_matches, figures, head_matches
from outrider.models.pyscout.evaluate import generate
from outrider.models.pyscout.sizes import Shape
from outrider.models.pyscout.tasks import Conversation

FUNCTIONS = [corpus.Function("python", source) for source in corpus.extract(inspect.getsource(textwrap))]
CASES = [Conversation("plain", ({"role": "assistant", "content": f"x = {n}\nreturn x * {n}"},)) for n in range(5)]
PROMPTS = [[7, 8, 9], [10, 11], [12, 13, 14, 15, 16]]


def _model(seed: int, layers: int = 3) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    model = Shape(width=32, layers=layers, heads=2, key_value_heads=1, head=16, feed_forward=32).build()
    for parameter in model.parameters():
        parameter.data *= 4  # so that it has opinions
    return model.eval()


def _chosen(logits: torch.Tensor, noise: torch.Tensor | None) -> int:
    return int((logits if noise is None else logits.log_softmax(-1) + noise).argmax())


@torch.no_grad()
def _chain(target: LlamaForCausalLM, head: Any, known: list[int], noise: list[torch.Tensor | None]) -> list[int]:
    """The head's own drafts after the tokens `known`, the last of which the target has not read yet."""
    states: list[torch.Tensor] = []
    hook = head.model.midlayer.register_forward_hook(lambda layer, arguments, output: states.append(output))
    ids = torch.tensor([known[:-1]])
    features, _ = read_target(target, head.config.eagle_taps, ids, torch.ones_like(ids), 1)
    cache, drafts = DynamicCache(), []
    inputs = {"input_ids": torch.tensor([known[1:]]), "hidden_states": features}
    for extra in noise:
        logits = head(**inputs, past_key_values=cache).logits[0, -1]
        allowed = draft_ids(head)
        drafts.append(int(allowed[_chosen(logits, None if extra is None else extra[allowed])]))
        inputs = {"input_ids": torch.tensor([drafts[-1:]]), "hidden_states": states[-1][:, -1:]}
    hook.remove()
    return drafts


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("vocabulary", [None, list(range(0, 4096, 3))])
def test_the_first_drafts_that_match_are_those_of_a_chain(temperature: float, vocabulary: list[int] | None) -> None:
    target, draft = _model(0), _model(1)
    head = new_head(target, vocabulary=vocabulary)
    answers, noise = generate(target, PROMPTS, 9, temperature, seed=3)
    batch = [Sample(prompt + answer, len(prompt)) for prompt, answer in zip(PROMPTS, answers, strict=True)]
    noise = noise.transpose(0, 1) if temperature else noise
    by_head = head_matches(target, head, batch, noise, temperature)
    by_draft = draft_matches(draft, batch, noise, temperature)
    for row, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=True)):
        assert by_head[row].shape == by_draft[row].shape == (len(answer) - 1, DEPTH)
        for place in range(len(answer) - 1):
            actual = answer[place + 1 : place + 1 + DEPTH]
            extra = [noise[row, place + 1 + k] if temperature else None for k in range(len(actual))]
            known = prompt + answer[: place + 1]
            chains = {"head": _chain(target, head, known, extra), "draft": []}
            for k in range(len(actual)):
                with torch.no_grad():
                    logits = draft(input_ids=torch.tensor([known + chains["draft"]])).logits[0, -1]
                chains["draft"].append(_chosen(logits, extra[k]))
            for found, name in ((by_head, "head"), (by_draft, "draft")):
                agreed = [one == other for one, other in zip(chains[name], actual, strict=True)]
                kept = agreed.index(False) if False in agreed else len(agreed)
                assert int(found[row][place].int().cumprod(0).sum()) == kept, name


def test_figures_count_drafts_with_all_before_them() -> None:
    matches = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [1, 0, 0, 0, 0]], dtype=torch.bool)
    found = figures([matches, torch.ones(0, DEPTH, dtype=torch.bool)])
    assert found["by_depth"] == [3 / 4, 1 / 3, 0, 0, 0]
    assert found["acceptance"] == 3 / 5  # from the first place 2 of 4, then from the fourth 1 of 1
    assert found["tokens_per_pass"] == 2  # four tokens, which the target alone would not have drafted, in two passes


def test_a_draft_model_that_is_the_target_is_always_right() -> None:
    words: PreTrainedTokenizerFast = tokenizer.train([f.source for f in FUNCTIONS], vocabulary=600)
    target = _model(0)
    found = depth.depths(target, target, {"head": new_head(target)}, words, CASES, 1.0)
    assert found["draft"]["by_depth"] == [1.0] * DEPTH
    assert found["head"]["by_depth"][0] < 0.5
    assert found["cases"] == len(CASES)


def test_initial_weights_of_heads_copy_before_any_training() -> None:
    torch.manual_seed(0)
    target = Shape(width=256, layers=3, heads=4, key_value_heads=2, head=64, feed_forward=64).build().eval()
    from outrider.models.pyscout import copying

    copying.initialize(target)
    parts = [torch.randint(5, 4096, (40,)).tolist() for _ in range(24)]
    texts = [Sample(part + part, 40) for part in parts]
    head, mtp = new_head(target, (0, 1, 2)), Mtp(target)
    head_copying.initialize(head, target, texts[4:])
    mtp_copying.initialize(mtp, target, texts[4:])
    for each in (head, mtp):
        kept = torch.stack([match[:, 0] for match in head_matches(target, each, texts[:4], torch.empty(0), 0.0)])
        assert kept.float().mean() > 0.8
