"""Weights that are rounded while they are trained: as NNCF stores them."""

from __future__ import annotations

import random
from pathlib import Path

import nncf
import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch
from nncf.quantization.advanced_parameters import AdvancedCompressionParameters, GroupSizeFallbackMode
from torch import nn

from outrider.export.distill import Distillation, Sample, Unrolling, training, write_samples
from outrider.export.distill.eagle3 import Eagle3, new_head
from outrider.export.distill.head import distil_head, starts, unrolled_divergence
from outrider.export.distill.rounding import fitting_group, rounded, rounding

from .test_distill_head import BATCH, PROMPTS, _target


def stored_by_nncf(weight: np.ndarray, group_size: int) -> np.ndarray:
    """What a matrix product computes with a weight of (rows, columns) after the compression of an export."""
    columns = weight.shape[1]
    given = ops.parameter([-1, columns], np.float32)
    model = ov.Model([ops.matmul(given, ops.constant(weight), False, True)], [given])
    advanced = AdvancedCompressionParameters(group_size_fallback_mode=GroupSizeFallbackMode.ADJUST)
    compressed = nncf.compress_weights(
        model,
        mode=nncf.CompressWeightsMode.INT4_SYM,
        group_size=group_size,
        ratio=1.0,
        all_layers=True,
        advanced_parameters=advanced,
    )
    run = ov.Core().compile_model(
        compressed, "CPU", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "INFERENCE_PRECISION_HINT": "f32"}
    )
    return np.array(run(np.eye(columns, dtype=np.float32))[0]).T


@pytest.mark.parametrize(("columns", "group_size"), [(256, 128), (256, 32), (96, 128), (192, 128), (128, -1)])
def test_weights_are_rounded_to_what_nncf_stores(columns: int, group_size: int) -> None:
    rng = np.random.default_rng(columns + group_size)
    weight = rng.standard_normal((48, columns)).astype(np.float32)
    weight[3] = 0
    group = fitting_group(columns, group_size)
    assert group is not None
    ours = rounded(torch.tensor(weight), group).numpy()
    assert np.abs(ours - weight).max() > 0.05
    np.testing.assert_allclose(ours, stored_by_nncf(weight, group_size), rtol=2e-3, atol=2e-3)  # scales are f16 there


@pytest.mark.parametrize(
    ("columns", "group_size", "found"), [(80, 128, None), (48, 32, None), (64, 128, 64), (96, 64, 32)]
)
def test_rows_that_no_group_divides_are_left_to_int8(columns: int, group_size: int, found: int | None) -> None:
    assert fitting_group(columns, group_size) == found


def test_within_the_block_layers_compute_with_rounded_weights_and_learn_those_that_are_not() -> None:
    head = new_head(_target())
    before = {name: weight.detach().clone() for name, weight in head.named_parameters()}
    layers = {name: layer for name, layer in head.named_modules() if isinstance(layer, nn.Linear)}
    plain = unrolled_divergence(_target(), head, BATCH, 0.5)
    with rounding(head, 32):
        for name, layer in layers.items():
            own = before[f"{name}.weight"]
            expected = own if name.endswith("lm_head") else rounded(own, 32)
            torch.testing.assert_close(layer.weight.detach(), expected, msg=name)
        loss = unrolled_divergence(_target(), head, BATCH, 0.5)
        assert loss != plain
        loss.backward()
        learnt = [weight for weight in head.parameters() if weight.requires_grad]
        assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in learnt)
    assert unrolled_divergence(_target(), head, BATCH, 0.5) == plain
    after = dict(head.named_parameters())
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_an_interrupted_training_with_rounding_and_drawn_places_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    target, how = _target(), Distillation(epochs=2, batch_size=8, max_new_tokens=8, group_size=32)
    samples, unrolling = list(write_samples(target, PROMPTS, how)), Unrolling(places=2)

    def interrupt(step: int, loss: float) -> None:
        if step == 7:
            raise KeyboardInterrupt

    whole, cut, resumed = (new_head(target) for _ in range(3))
    losses = distil_head(target, whole, samples, how, unrolling).losses
    with pytest.raises(KeyboardInterrupt):
        distil_head(target, cut, samples, how, unrolling, on_step=interrupt, state=tmp_path / "state.pt")
    assert names(cut) == names(whole)  # not those of the block
    assert distil_head(target, resumed, samples, how, unrolling, state=tmp_path / "state.pt").losses == pytest.approx(
        losses
    )
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def names(head: Eagle3) -> list[str]:
    return [name for name, _ in head.named_parameters()]


def test_places_are_drawn_from_all_that_propose_something_and_anew_each_time() -> None:
    every, lengths = starts(BATCH)
    possible = [
        {row for row in rows if row + 2 < length} for rows, length in zip(every.tolist(), lengths.tolist(), strict=True)
    ]
    seen: list[set[int]] = [set() for _ in BATCH]
    rng = random.Random(0)
    for _ in range(40):
        rows, again = starts(BATCH, 2, rng)
        assert rows.shape == (len(BATCH), 2)
        assert again.tolist() == lengths.tolist()
        for drawn, found, sample in zip(rows.tolist(), seen, BATCH, strict=True):
            chosen = [row for row in drawn if row + 2 < len(sample.ids)]
            assert len({*chosen}) == len(chosen)
            found.update(chosen)
    assert seen == possible


def test_as_many_places_as_there_are_give_the_loss_of_all() -> None:
    target = _target()
    head = new_head(target)
    losses = [
        unrolled_divergence(target, head, BATCH, 0.5, Unrolling(places=places), random.Random(0))
        for places in (None, 99)
    ]
    torch.testing.assert_close(*losses)
    fewer = unrolled_divergence(target, head, BATCH, 0.5, Unrolling(places=1), random.Random(0))
    assert fewer != losses[0]


@pytest.mark.parametrize("group_size", [0, -2])
def test_a_group_that_cannot_be_is_refused(group_size: int) -> None:
    with pytest.raises(ValueError, match="group_size must be positive, or -1 for one scale per row"):
        Distillation(group_size=group_size)
    with pytest.raises(ValueError, match="places must be at least 1"):
        Unrolling(places=0)


def test_answers_of_two_tokens_have_one_place() -> None:
    assert starts([Sample([4, 5, 6, 7], 2)], 3, random.Random(0))[0].tolist() == [[1]]
