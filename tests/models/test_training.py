"""Training: labels, curriculum, initial weights that copy, and a run that resumes where it was interrupted."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import random
import textwrap
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from outrider.models.pyscout import batches, copying, corpus, tokenizer
from outrider.models.pyscout import train as training
from outrider.models.pyscout.evaluate import windows
from outrider.models.pyscout.sizes import SIZES, Shape
from outrider.models.pyscout.supply import Supply
from outrider.models.pyscout.tasks import Conversation, TaskMaker

FUNCTIONS = [corpus.Function("python", s) for m in (textwrap, random) for s in corpus.extract(inspect.getsource(m))]


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    return tokenizer.train([f.source for f in FUNCTIONS], vocabulary=tokenizer.VOCABULARY)


def test_answers_carry_loss_and_requests_do_not(words: PreTrainedTokenizerFast) -> None:
    messages = ({"role": "user", "content": "Repeat:\nx = 1"}, {"role": "assistant", "content": "x = 1"})
    ids, loss = batches.encode(words, Conversation("repeat", messages))
    assert words.decode(ids) == words.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=False)
    assert words.decode([i for i, has in zip(ids, loss, strict=True) if has]) == "x = 1<|end|>"


def test_bare_code_carries_loss_everywhere(words: PreTrainedTokenizerFast) -> None:
    ids, loss = batches.encode(words, Conversation("plain", ({"role": "assistant", "content": "x = 1"},)))
    assert all(loss)
    assert words.decode(ids) == "x = 1<|end|>"


def test_labels_are_the_next_tokens_and_padding_has_none() -> None:
    batch = batches.collate([([5, 6, 7], [False, False, True]), ([8, 9], [True, True])], pad=1)
    assert batch.ids.tolist() == [[5, 6, 7], [8, 9, 1]]
    x = batches.IGNORED
    assert batch.labels.tolist() == [[x, 7, x], [9, x, x]]


def test_the_curriculum_begins_with_copying_and_ends_with_long_functions() -> None:
    assert "noise" in batches.stage(0.0).mix
    assert "noise" not in batches.stage(0.1).mix
    assert batches.stage(0.1).longest < batches.stage(0.4).longest < batches.stage(1.0).longest == batches.LONG_FUNCTION


def test_a_pool_depends_on_its_number_alone(words: PreTrainedTokenizerFast) -> None:
    maker = TaskMaker(FUNCTIONS)
    first, again, other = (list(batches.pool(FUNCTIONS, maker, words, n, 0.5, 2000, 24)) for n in (3, 3, 4))
    assert [b.ids.tolist() for b in first] == [b.ids.tolist() for b in again] != [b.ids.tolist() for b in other]
    assert sum(len(b.ids) for b in first) == 24
    assert all(b.ids.numel() <= 2000 or len(b.ids) == 1 for b in first)


@pytest.mark.slow
def test_pools_made_ahead_by_other_processes_are_those_made_in_place(words: PreTrainedTokenizerFast) -> None:
    found = []
    for workers in (0, 1):
        supply = Supply(FUNCTIONS, TaskMaker(FUNCTIONS), words, 4000, workers, pool_size=48)
        with contextlib.closing(supply.pools(5, lambda: 0.5)) as pools:
            found.append([[batch.ids.tolist() for batch in pool] for pool in itertools.islice(pools, 3)])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_the_learning_rate_rises_stays_and_falls_to_zero() -> None:
    rates = [training.schedule(n / 1000) for n in range(1001)]
    assert max(rates) == 1.0
    assert rates[0] < 0.1
    assert rates[-1] == 0.0
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[100:]))


@pytest.mark.parametrize("size", sorted(SIZES))
def test_the_draft_has_at_most_a_tenth_of_the_parameters(size: str) -> None:
    with torch.device("meta"):
        target, draft = SIZES[size].target.build(), SIZES[size].draft.build()
    assert draft.num_parameters() * 10 <= target.num_parameters()


def test_initial_weights_copy_before_any_training() -> None:
    torch.manual_seed(0)
    model = SIZES["small"].target.build()
    copying.initialize(model)
    tokens = torch.randint(5, 4096, (4, 40))
    ids = torch.cat([tokens, tokens], 1)
    with torch.no_grad():
        guesses = model(input_ids=ids).logits.argmax(-1)
    assert (guesses[:, 40:-1] == ids[:, 41:]).float().mean() > 0.8
    assert (guesses[:, :39] == ids[:, 1:40]).float().mean() < 0.05


def test_loss_is_the_cross_entropy_of_the_labelled_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "has_fast_bfloat16", lambda device: False)
    model = _tiny().build()
    batch = batches.collate([([5, 6, 7, 8], [False, True, False, True]), ([9, 10], [True, True])], pad=1)
    logits = model(input_ids=batch.ids).logits.log_softmax(-1)
    slow = -(logits[0, 0, 6] + logits[0, 2, 8] + logits[1, 0, 10]) / 3
    torch.testing.assert_close(training.loss_of(model, batch.ids, batch.labels), slow)


@pytest.mark.slow
def test_training_learns_and_resumes_where_it_was_interrupted(
    words: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "POOL", 16)
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)

    def run(folder: str, stop_after: int | None) -> nn.Module:
        torch.manual_seed(1)
        model = _tiny().build()

        def interrupt(*_: object) -> dict[str, float]:
            nonlocal stop_after
            if stop_after is not None:
                stop_after -= 1
                if stop_after == 0:
                    raise KeyboardInterrupt
            return {}

        budget = training.Budget(tokens=20_000)
        training.train(model, FUNCTIONS, words, budget, 1500, tmp_path / folder, on_save=interrupt)
        return model

    whole = run("whole", None)
    with pytest.raises(KeyboardInterrupt):
        run("cut", 3)
    resumed = run("cut", None)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    batch = batches.collate([batches.encode(words, Conversation("plain", ({"role": "a", "content": "return x"},)))], 1)
    fresh = _tiny().build()
    assert training.loss_of(whole, batch.ids, batch.ids) < training.loss_of(fresh, batch.ids, batch.ids)
    assert (tmp_path / "whole" / "checkpoint" / "model.safetensors").exists()


@pytest.mark.slow
def test_the_curriculum_goes_to_its_end_where_time_is_short(
    words: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    # For this module alone: an event loop in another thread that reads such a clock sleeps for hours.
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    monkeypatch.setattr(batches, "POOL", 4)
    asked = []
    pools = Supply.pools

    def watched(supply: Supply, first: int, seen: Callable[[], float]) -> Generator[list[batches.Batch], None, None]:
        def note() -> float:
            asked.append(seen())
            return asked[-1]

        return pools(supply, first, note)

    monkeypatch.setattr(Supply, "pools", watched)
    model = _tiny().build()
    training.train(model, FUNCTIONS, words, training.Budget(10**9, minutes=1), 1500, tmp_path / "short")
    assert asked == sorted(asked)
    assert asked[0] == 0
    assert 0.8 < asked[-1] <= 1


@pytest.mark.parametrize(
    ("matches", "length", "expected"),
    [
        ([True] * 6, 5, [(5, 5)]),  # five accepted and the target's own
        ([False] * 3, 5, [(0, 3), (0, 2), (0, 1)]),
        ([True, False, True, True, True], 2, [(1, 2), (2, 2)]),
        ([], 5, []),
    ],
)
def test_windows_count_passes_as_the_engine_does(
    matches: list[bool], length: int, expected: list[tuple[int, int]]
) -> None:
    assert list(windows(matches, length)) == expected


def _tiny() -> Shape:
    return Shape(width=32, layers=2, heads=2, key_value_heads=1, head=16, feed_forward=32)
