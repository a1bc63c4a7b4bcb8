"""Heads: what they read, how they are unrolled in training, and that they come closer to their target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from outrider.export.distill import Distillation, Sample, Unrolling, divergence, training, write_samples
from outrider.export.distill.eagle3 import commonest_ids, draft_ids, load_head, new_head, save_head
from outrider.export.distill.head import distil_head, read_target, starts, unrolled_divergence
from outrider.export.distill.samples import collate
from outrider.export.distill.taps import check_taps, default_taps
from outrider.export.distill.unrolled import unroll

END = 0
BATCH = [Sample([5, 6, 7, 8, 9, 3, 4, 12, END], 3), Sample([10, 11, 30, END], 2), Sample([7, 31, 2, 2, 9, 9, 21], 1)]
PROMPTS = [[2 + (n * k) % 37 for k in range(1, 2 + n % 5)] for n in range(40)]


def _target(layers: int = 5, seed: int = 0, width: int = 32) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
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


def _features(target: LlamaForCausalLM, head: Any, ids: Sequence[int]) -> torch.Tensor:
    """The residual streams after the tapped layers, by running the layers one after another."""
    model = target.model
    tokens = torch.tensor([ids])
    stream = model.embed_tokens(tokens)
    turned = model.rotary_emb(stream, torch.arange(len(ids))[None])
    mask = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
    found = []
    for number, layer in enumerate(model.layers):
        stream = layer(stream, attention_mask=mask, position_embeddings=turned)
        if number in head.config.eagle_taps:
            found.append(stream)
    return torch.cat(found, -1)


@torch.no_grad()
def _draft_slowly(target: LlamaForCausalLM, head: Any, ids: Sequence[int], row: int, steps: int) -> list[torch.Tensor]:
    """Logits of each step from `row` on, with a cache of rows that were fed with target features and then its own."""
    states: list[torch.Tensor] = []
    hook = head.model.midlayer.register_forward_hook(lambda layer, arguments, output: states.append(output))
    cache = DynamicCache()
    logits = []
    features = _features(target, head, ids)[:, : row + 1]
    for step in range(steps):
        tokens = ids[1 : row + 2] if step == 0 else ids[row + 1 + step : row + 2 + step]
        position = torch.arange(row + 1)[None] if step == 0 else torch.tensor([[row + step]])
        inputs = features if step == 0 else states[-1][:, -1:]
        output = head(
            input_ids=torch.tensor([tokens]), hidden_states=inputs, position_ids=position, past_key_values=cache
        )
        logits.append(output.logits[0, -1])
    hook.remove()
    return logits


@pytest.mark.parametrize("layers", [3, 4, 5, 6, 7, 8, 12, 36])
def test_default_taps_are_layers_of_the_target_in_order(layers: int) -> None:
    assert check_taps(default_taps(layers), layers) == default_taps(layers)


def test_default_taps_of_a_large_target_are_those_of_eagle() -> None:
    assert default_taps(36) == (1, 17, 32)


def test_unrolled_rows_equal_drafting_step_by_step() -> None:
    target = _target()
    head = new_head(target, from_target=False)
    ids, mask = collate(BATCH)
    features, _ = read_target(target, head.config.eagle_taps, ids, mask, 1)
    rows, _ = starts(BATCH)
    with torch.no_grad():
        unrolled = [head.model.lm_head(state) for state in unroll(head, ids, features, rows, 3)]
    compared = 0
    for number, sample in enumerate(BATCH):
        for place, row in enumerate(rows[number].tolist()):
            steps = min(3, len(sample.ids) - row - 2)
            for step, slow in enumerate(_draft_slowly(target, head, sample.ids, row, steps)):
                torch.testing.assert_close(unrolled[step][number, place], slow, rtol=1e-4, atol=1e-4)
                compared += 1
    assert compared == (3 * 3 + 2 + 1) + 1 + (3 * 3 + 2 + 1)


def test_rows_begin_with_an_answers_first_token_and_end_before_its_last() -> None:
    rows, lengths = starts(BATCH)
    assert rows.tolist() == [[2, 3, 4, 5, 6], [1, 2, 2, 2, 2], [0, 1, 2, 3, 4]]
    assert lengths.tolist() == [9, 4, 7]


@pytest.mark.parametrize("vocabulary", [None, [0, 2, 3, 5, 7, 9, 11, 12, 13, 17, 21, 22, 30, 31, 39]])
def test_the_loss_compares_every_draft_with_the_target(vocabulary: list[int] | None) -> None:
    target = _target()
    head = new_head(target, vocabulary=vocabulary)
    allowed = torch.tensor(vocabulary or range(40))
    slow = []
    for step in range(3):
        pairs = []
        for sample in BATCH:
            with torch.no_grad():
                expected = target(input_ids=torch.tensor([sample.ids])).logits[0]
            for row in range(sample.start - 1, len(sample.ids) - 2 - step):
                if int(expected[row + 1 + step].argmax()) in allowed:
                    drafted = _draft_slowly(target, head, sample.ids, row, step + 1)[step]
                    pairs.append((expected[row + 1 + step][allowed], drafted))
        slow.append(divergence(torch.stack([p for p, _ in pairs]), torch.stack([q for _, q in pairs]), 0.5))
    loss = unrolled_divergence(target, head, BATCH, 0.5, Unrolling(steps=3, decay=0.7))
    torch.testing.assert_close(loss, (slow[0] + 0.7 * slow[1] + 0.49 * slow[2]) / 2.19, rtol=1e-4, atol=1e-4)
    loss.backward()
    assert all(weight.grad is None for weight in target.parameters())
    learning = {name for name, weight in head.named_parameters() if weight.grad is not None}
    assert learning == {name for name, _ in head.named_parameters()} - {"model.embed_tokens.weight"}


def test_a_step_beyond_all_answers_teaches_nothing() -> None:
    target = _target()
    head = new_head(target)
    short = [Sample([5, 6, 7, 8], 2), Sample([9, 3, 2, 4, 4], 3)]
    both = [unrolled_divergence(target, head, short, 0.5, Unrolling(steps=steps)) for steps in (1, 4)]
    torch.testing.assert_close(*both)


@pytest.mark.slow
def test_a_head_comes_closer_to_its_target() -> None:
    target = _target()
    head = new_head(target)
    how = Distillation(epochs=25, batch_size=8, max_new_tokens=16, learning_rate=1e-2)
    samples = list(write_samples(target, PROMPTS, how))
    unseen = list(write_samples(target, [[3, 4], [20, 7, 7], [31]], how))
    before = unrolled_divergence(target, head, unseen, 0.5).item()
    losses = distil_head(target, head, samples, how).losses
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert unrolled_divergence(target, head, unseen, 0.5).item() < before


def test_an_interrupted_training_ends_with_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    target, how = _target(), Distillation(epochs=2, batch_size=8, max_new_tokens=8)
    samples = list(write_samples(target, PROMPTS, how))

    def interrupt(step: int, loss: float) -> None:
        if step == 7:
            raise KeyboardInterrupt

    whole, cut, resumed = (new_head(target) for _ in range(3))
    losses = distil_head(target, whole, samples, how).losses
    with pytest.raises(KeyboardInterrupt):
        distil_head(target, cut, samples, how, on_step=interrupt, state=tmp_path / "state.pt")
    outcome = distil_head(target, resumed, samples, how, state=tmp_path / "state.pt")
    assert outcome.losses == pytest.approx(losses)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_saved_head_has_the_layout_of_published_ones_and_loads_again(tmp_path: Path) -> None:
    target = _target()
    head = new_head(target, taps=(0, 2, 3), vocabulary=[1, 4, 5, 9])
    save_head(head, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["model_type"], config["num_hidden_layers"]) == ("llama", 1)
    assert (config["eagle_taps"], config["draft_vocab_size"], config["target_hidden_size"]) == ([0, 2, 3], 4, 32)
    from safetensors.torch import load_file

    weights = load_file(tmp_path / "model.safetensors")
    assert "embed_tokens.weight" not in weights
    assert weights["fc.weight"].shape == (32, 96)
    assert weights["fc.weight"].dtype == torch.float16
    assert weights["d2t"].tolist() == [1, 3, 3, 6]
    assert weights["t2d"].nonzero().flatten().tolist() == [1, 4, 5, 9]
    again = load_head(tmp_path, target)
    assert draft_ids(again).tolist() == [1, 4, 5, 9]
    for (name, one), other in zip(head.named_parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, msg=name)


def test_the_commonest_ids_are_those_of_the_answers() -> None:
    samples = [Sample([9, 9, 9, 9, 5, 3, 3, 0], 4), Sample([9, 3, 5, 0], 1)]
    assert commonest_ids(samples, 2) == [0, 3]
    assert commonest_ids(samples, 99) == [0, 3, 5]


def test_a_head_for_another_target_is_refused(tmp_path: Path) -> None:
    save_head(new_head(_target()), tmp_path)
    with pytest.raises(ValueError, match="width 32, and the target has 40 and 64"):
        load_head(tmp_path, _target(width=64))


@pytest.mark.parametrize("taps", [(1, 2), (2, 1, 3), (1, 1, 2), (0, 2, 5), (-1, 0, 1)])
def test_taps_that_the_target_does_not_have_are_refused(taps: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"taps must be three ascending layers of 0\.\.4"):
        new_head(_target(), taps)


def test_a_target_of_too_few_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="three layers, and the target has 2"):
        new_head(_target(layers=2))


@pytest.mark.parametrize("vocabulary", [[], [3, 2], [2, 2], [-1, 2], [2, 40]])
def test_a_draft_vocabulary_that_cannot_be_is_refused(vocabulary: list[int]) -> None:
    with pytest.raises(ValueError, match=r"ascending ids of 0\.\.39"):
        new_head(_target(), vocabulary=vocabulary)


def test_answers_of_one_token_are_nothing_to_learn_from() -> None:
    target = _target()
    with pytest.raises(ValueError, match="no sample"):
        distil_head(target, new_head(target), [Sample([2, 3], 1)])


@pytest.mark.parametrize("options", [{"steps": 0}, {"decay": 0.0}, {"decay": 1.5}])
def test_an_unrolling_that_cannot_be_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Unrolling(**options)  # type: ignore[arg-type]
