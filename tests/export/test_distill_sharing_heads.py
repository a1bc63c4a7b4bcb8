"""Heads that share embedding and projection with their target: what they compute, learn, and save."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from outrider.export.distill import Distillation, Sample, Unrolling, divergence, training, write_samples
from outrider.export.distill.head import distil_head, read_target, starts, unrolled_divergence
from outrider.export.distill.kinds import SharingKind, load_sharing_head, make_head
from outrider.export.distill.samples import collate

END, WIDTH = 0, 32
BATCH = [Sample([5, 6, 7, 8, 9, 3, 4, 12, END], 3), Sample([10, 11, 30, END], 2), Sample([7, 31, 2, 2, 9, 9, 21], 1)]
KINDS: list[SharingKind] = ["medusa", "hydra", "mtp", "exit"]
STEPS = {"medusa": 3, "hydra": 3, "mtp": 3, "exit": 1}


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return make_target(WIDTH)


def make_target(width: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        initializer_range=0.3,  # so that the target has opinions
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


def scrambled(kind: SharingKind, target: LlamaForCausalLM) -> Any:
    """A head with random weights, also where it begins as its target is."""
    head = make_head(kind, target, "target", exit_layer=2 if kind == "exit" else None)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn(weight.shape) * WIDTH**-0.5 + ("norm" in name))
    return head.eval()


@torch.no_grad()
def slowly(
    kind: str, head: Any, target: LlamaForCausalLM, ids: Sequence[int], row: int, steps: int
) -> list[torch.Tensor]:
    """Logits of each step from `row` on, one sequence and one token at a time."""
    weights = head.own_weights()
    text = torch.tensor([ids])
    outputs = target(text, output_hidden_states=True).hidden_states  # of the embedding, each layer, the last one normed
    found = []
    if kind in ("medusa", "hydra"):
        for step in range(steps):
            state = outputs[-1][0, row]
            if kind == "hydra":
                read = [target.model.embed_tokens.weight[token] for token in ids[row + 1 : row + 2 + step]]
                state = weights[f"{step}.fc.weight"] @ torch.cat([state, *read])
            for block in range({"medusa": 1, "hydra": 2}[kind]):
                name = f"{step}.{block}.linear"
                state = state + torch.nn.functional.silu(weights[f"{name}.weight"] @ state + weights[f"{name}.bias"])
            found.append(target.lm_head(state))
        return found
    if kind == "exit":
        for step in range(steps):
            state = outputs[2][0, row + 1 + step]
            inner = normed(state, weights["adapter.norm.weight"])
            gate = torch.nn.functional.silu(weights["adapter.gate_proj.weight"] @ inner)
            state = state + weights["adapter.down_proj.weight"] @ (gate * (weights["adapter.up_proj.weight"] @ inner))
            found.append(target.lm_head(normed(state, weights["norm.weight"])))
        return found
    cache, state = DynamicCache(), outputs[-1][:, : row + 1]
    for step in range(steps):
        tokens = text[:, 1 : row + 2] if step == 0 else text[:, row + 1 + step : row + 2 + step]
        places = torch.arange(row + 1)[None] if step == 0 else torch.tensor([[row + step]])
        read = torch.cat(
            [
                normed(target.model.embed_tokens(tokens), weights["enorm.weight"]),
                normed(state, weights["hnorm.weight"]),
            ],
            -1,
        )
        read = read @ weights["eh_proj.weight"].T
        size = places.shape[1]
        mask = torch.full((size, size), -torch.inf).triu(1)[None, None] if step == 0 else None
        turned = target.model.rotary_emb(read, places)
        out = head.layer(read, attention_mask=mask, past_key_values=cache, position_embeddings=turned)
        state = normed(out, weights["norm.weight"])[:, -1:]
        found.append(target.lm_head(state[0, 0]))
    return found


def normed(state: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * state / (state.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_equal_drafting_step_by_step(target: LlamaForCausalLM, kind: SharingKind) -> None:
    head = scrambled(kind, target)
    ids, mask = collate(BATCH)
    features, _ = read_target(target, head.taps, ids, mask, 1)
    rows, _ = starts(BATCH)
    with torch.no_grad():
        found = [head.project(states) for states in head.drafts(ids, features, rows, 3)]
    for number, sample in enumerate(BATCH):
        for place, row in enumerate(rows[number].tolist()):
            steps = min(3, len(sample.ids) - row - 2)
            for step, expected in enumerate(slowly(kind, head, target, sample.ids, row, steps)):
                torch.testing.assert_close(found[step][number, place], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_compares_every_draft_with_the_target(target: LlamaForCausalLM, kind: SharingKind) -> None:
    head = scrambled(kind, target)
    losses, weights = [], [0.7**step for step in range(STEPS[kind])]
    for step in range(STEPS[kind]):
        pairs = []
        for sample in BATCH:
            with torch.no_grad():
                expected = target(input_ids=torch.tensor([sample.ids])).logits[0]
            for row in range(sample.start - 1, len(sample.ids) - 2 - step):
                pairs.append((expected[row + 1 + step], slowly(kind, head, target, sample.ids, row, step + 1)[step]))
        losses.append(divergence(*(torch.stack(each) for each in zip(*pairs, strict=True)), 0.5))
    loss = unrolled_divergence(target, head, BATCH, 0.5, Unrolling(steps=3, decay=0.7))
    expected = sum(weight * each for weight, each in zip(weights, losses, strict=True)) / sum(weights)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)
    loss.backward()
    assert all(weight.grad is None for weight in target.parameters())
    learning = {name for name, weight in head.named_parameters() if weight.grad is not None}
    assert {name.removeprefix("heads.") for name in learning} == {*head.own_weights()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_comes_closer_to_its_target_and_goes_on_where_it_was_interrupted(
    target: LlamaForCausalLM, kind: SharingKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    how = Distillation(epochs=8, batch_size=8, max_new_tokens=12, learning_rate=1e-2)
    samples = list(write_samples(target, [[2 + (n * k) % 37 for k in range(1, 2 + n % 5)] for n in range(24)], how))

    def interrupt(step: int, loss: float) -> None:
        if step == 7:
            raise KeyboardInterrupt

    whole, cut, resumed = (make_head(kind, target, "target") for _ in range(3))
    losses = distil_head(target, whole, samples, how).losses
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    with pytest.raises(KeyboardInterrupt):
        distil_head(target, cut, samples, how, on_step=interrupt, state=tmp_path / "state.pt")
    assert distil_head(target, resumed, samples, how, state=tmp_path / "state.pt").losses == pytest.approx(losses)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_head_loads_again_and_only_for_its_target(
    target: LlamaForCausalLM, kind: SharingKind, tmp_path: Path
) -> None:
    head = scrambled(kind, target)
    head.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["hidden_size"], config["vocab_size"], config["dtype"]) == (WIDTH, 40, "float16")
    again = load_sharing_head(tmp_path, target)
    for name, weight in head.own_weights().items():
        torch.testing.assert_close(again.own_weights()[name], weight, rtol=1e-3, atol=1e-3, msg=name)
    with pytest.raises(ValueError, match="is a head for another target"):
        load_sharing_head(tmp_path, make_target(64))


def test_medusa_heads_begin_as_the_projection_of_the_target(target: LlamaForCausalLM) -> None:
    ids, mask = collate(BATCH)
    for kind in ("medusa", "hydra"):
        head = make_head(kind, target, "target")
        features, logits = read_target(target, head.taps, ids, mask, ids.shape[1])
        rows, _ = starts(BATCH)
        for states in head.drafts(ids, features, rows, 3):
            expected = logits.gather(1, rows[..., None].expand(-1, -1, 40))
            torch.testing.assert_close(head.project(states), expected, rtol=1e-4, atol=1e-4)
