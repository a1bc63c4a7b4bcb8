"""Distillation: the formula, what it learns from, and that a draft comes closer to its target."""

from __future__ import annotations

import io
import logging
import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.export.distill import (
    Distillation,
    Sample,
    batch_divergence,
    distil,
    divergence,
    progress,
    training,
    write_samples,
)
from outrider.export.distill import samples as sample_module
from outrider.pipelines.errors import InvalidOption

END = 0


def _model(width: int, seed: int, vocabulary: int = 40) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.6,  # so that the target has opinions
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


PROMPTS = [[2 + (n * k) % 37 for k in range(1, 2 + n % 5)] for n in range(40)]


@pytest.mark.parametrize("variation", [0.0, 0.3, 1.0])
def test_divergence_equals_a_slow_reference(variation: float) -> None:
    target, draft = torch.randn(3, 7), torch.randn(3, 7)
    slow = 0.0
    for p_logits, q_logits in zip(target.tolist(), draft.tolist(), strict=True):
        p = [math.exp(x) / sum(map(math.exp, p_logits)) for x in p_logits]
        q = [math.exp(x) / sum(map(math.exp, q_logits)) for x in q_logits]
        kl = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        tv = sum(max(0.0, a - b) for a, b in zip(p, q, strict=True))
        slow += (variation * tv + (1 - variation) * kl) / 3
    assert divergence(target, draft, variation).item() == pytest.approx(slow, rel=1e-5)


def test_divergence_of_a_model_from_itself_is_zero() -> None:
    logits = torch.randn(5, 9)
    assert divergence(logits, logits + 3, 0.5).item() == pytest.approx(0, abs=1e-6)


def test_the_target_writes_what_it_would_say() -> None:
    target = _model(32, 0)
    how = Distillation(temperatures=(0.0,), batch_size=7, max_new_tokens=12)
    samples = list(write_samples(target, PROMPTS, how))
    assert [sample.ids[: sample.start] for sample in samples] == PROMPTS
    for sample in samples[:10]:
        ids = list(sample.ids[: sample.start])
        while len(ids) - sample.start < 12 and (len(ids) == sample.start or ids[-1] != END):
            with torch.no_grad():
                ids.append(int(target(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        assert sample.ids == ids


@pytest.mark.parametrize("count", [3, 40])
def test_each_temperature_answers_as_many_prompts_of_all_lengths(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    answered: dict[float, list[int]] = {}

    def generate(target: object, prompts: list[list[int]], temperature: float, most: int) -> Iterator[Sample]:
        assert len(prompts) <= 4
        answered.setdefault(temperature, []).extend(map(len, prompts))
        return iter(())

    monkeypatch.setattr(sample_module, "_generate", generate)
    how = Distillation(temperatures=(0.0, 0.5, 1.0), batch_size=4)
    assert list(write_samples(_model(32, 0), [[0] * n for n in range(1, count + 1)], how)) == []
    assert [each for lengths in answered.values() for each in sorted(lengths)] == [
        n for first in (1, 2, 3) for n in range(first, count + 1, 3)
    ]


def test_loss_is_taken_over_answers_alone_whatever_the_padding() -> None:
    target, draft = _model(32, 0), _model(16, 1)
    batch = [Sample([5, 6, 7, 8, 9], 2), Sample([10, 11, END], 1)]
    rows = []
    for sample in batch:
        ids = torch.tensor([sample.ids])
        kept = slice(sample.start - 1, len(sample.ids) - 1)
        rows.append((target(input_ids=ids).logits[0, kept], draft(input_ids=ids).logits[0, kept]))
    slow = divergence(torch.cat([p for p, _ in rows]), torch.cat([q for _, q in rows]), 0.5)
    loss = batch_divergence(target, draft, batch, 0.5)
    torch.testing.assert_close(loss, slow)
    loss.backward()
    assert all(p.grad is None for p in target.parameters())
    assert all(p.grad is not None for p in draft.parameters())


def test_a_draft_comes_closer_to_its_target() -> None:
    target, draft = _model(32, 0), _model(16, 1)
    how = Distillation(epochs=30, batch_size=8, max_new_tokens=16, learning_rate=1e-2)
    samples = list(write_samples(target, PROMPTS, how))
    unseen = list(write_samples(target, [[3, 4], [20, 7, 7], [31]], how))
    before = batch_divergence(target, draft, unseen, 0.5).item()
    steps: list[int] = []
    losses = distil(target, draft, samples, how, on_step=lambda step, loss: steps.append(step)).losses
    assert steps == list(range(1, len(losses) + 1))
    assert len(losses) == 30 * 5
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert batch_divergence(target, draft, unseen, 0.5).item() < before


@pytest.mark.parametrize("matrices", [True, False])
def test_muon_trains_the_matrices_of_layers_and_nothing_else(matrices: bool) -> None:
    rates = (1e-9, 1e-2) if matrices else (1e-2, 1e-9)
    target, draft, before = _model(32, 0), _model(16, 1), dict(_model(16, 1).named_parameters())
    how = Distillation(epochs=1, batch_size=8, max_new_tokens=8, learning_rate=rates[0], matrix_rate=rates[1])
    distil(target, draft, list(write_samples(target, PROMPTS, how)), how)
    for name, weight in draft.named_parameters():
        moved = (weight - before[name]).abs().max() > 1e-4
        assert moved == (matrices == (weight.ndim == 2 and "layers" in name)), name


@pytest.mark.parametrize("matrix_rate", [None, 1e-2])
def test_an_interrupted_distillation_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matrix_rate: float | None
) -> None:
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    target, how = _model(32, 0), Distillation(epochs=2, batch_size=8, max_new_tokens=8, matrix_rate=matrix_rate)
    samples = list(write_samples(target, PROMPTS, how))

    def interrupt(step: int, loss: float) -> None:
        if step == 7:  # in the second epoch; its outcome is not saved yet
            raise KeyboardInterrupt

    whole, cut, resumed = (_model(16, 1) for _ in range(3))
    losses = distil(target, whole, samples, how).losses
    with pytest.raises(KeyboardInterrupt):
        distil(target, cut, samples, how, interrupt, state=tmp_path / "state.pt")
    steps: list[int] = []
    outcome = distil(target, resumed, samples, how, lambda step, loss: steps.append(step), tmp_path / "state.pt")
    assert steps == [7, 8, 9, 10]
    assert outcome.losses == pytest.approx(losses)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    again = distil(target, resumed, samples, how, interrupt, state=tmp_path / "state.pt")
    assert again.losses == outcome.losses  # nothing was left to do


def test_a_draft_learns_without_the_dropout_of_its_configuration() -> None:
    target, how = _model(32, 0), Distillation(batch_size=8, max_new_tokens=8)
    samples = list(write_samples(target, PROMPTS, how))
    with_dropout, without = (_model(16, 1) for _ in range(2))
    with_dropout.model.layers[0].self_attn.attention_dropout = 0.5
    assert distil(target, with_dropout, samples, how).losses == distil(target, without, samples, how).losses


@pytest.mark.parametrize(
    "options",
    [
        {"return_dict_in_generate": True},
        {"stop_strings": ["x"]},
        {"max_time": 1e-9},
        {"prompt_lookup_num_tokens": 2},
        {"penalty_alpha": 0.5},
        {"use_cache": False},
    ],
)
def test_the_target_writes_the_same_whatever_it_was_saved_to_generate_with(options: dict[str, object]) -> None:
    target, how = _model(32, 0), Distillation(batch_size=7, max_new_tokens=12)
    usual = list(write_samples(target, PROMPTS[:8], how))
    target.generation_config.update(**options)
    assert list(write_samples(target, PROMPTS[:8], how)) == usual


def test_answers_are_written_in_silence(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    target = _model(32, 0)
    target.generation_config.update(pad_token_id=None, max_length=20)
    assert list(write_samples(target, PROMPTS[:2], Distillation(max_new_tokens=2)))
    assert not caplog.records


def test_a_training_that_diverges_ends() -> None:
    target, draft = _model(32, 0), _model(16, 1)
    how = Distillation(batch_size=8, max_new_tokens=8, learning_rate=1e30)
    samples = list(write_samples(target, PROMPTS, how))
    with pytest.raises(InvalidOption, match=r"diverged: the loss of step [0-9]+ is (nan|inf)\. Choose a lower"):
        distil(target, draft, samples, how)


def test_a_progress_bar_in_a_file_is_written_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(progress, "tqdm", partial(tqdm, disable=False))  # whatever TQDM_DISABLE says
    samples = [Sample([2, 3, 4], 1)] * 80
    steps = len(distil(_model(32, 0), _model(16, 1), samples, Distillation(batch_size=4)).losses)
    assert steps == 40
    assert file.getvalue().count("distilling") < 4
    assert "40/40" in file.getvalue()


def test_vocabularies_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="vocabular"):
        distil(_model(32, 0), _model(16, 1, vocabulary=50), [Sample([2, 3], 1)])


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(ValueError, match="no sample"):
        distil(_model(32, 0), _model(16, 1), [])


@pytest.mark.parametrize(
    "options",
    [
        {"variation": 1.5},
        {"temperatures": ()},
        {"temperatures": (-1.0,)},
        {"epochs": 0},
        {"batch_size": 0},
        {"matrix_rate": 0.0},
        {"learning_rate": math.inf},
        {"seed": 2**64},
        {"seed": -(2**64)},
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Distillation(**options)  # type: ignore[arg-type]
