"""Tiny checkpoints with random weights, made on the spot, and a pair exported from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.export import Compression, export_pair

CORPUS = [
    "def area(width, height):\n    size = width * height\n    return size\n",
    "The quick brown fox jumps over the lazy dog. Repeat this function.\n",
] * 20
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(first_special: str = "<|user|>") -> Any:
    """A byte-level BPE tokenizer of 300 tokens with <|end|> as id 0 and `first_special` as id 1."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>", first_special, "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


def save(folder: Path, model: Any, tokenizer: Any) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_llama(width: int, layers: int, seed: int, heads: int = 2) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=1,
        head_dim=32,
        intermediate_size=2 * width,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).half()


@pytest.fixture(scope="session", autouse=True)
def quick_measuring() -> Iterator[None]:
    """Measure costs by a few passes: how fast a random model is matters to no test of an export."""
    from outrider.pipelines.model import tuning
    from outrider.pipelines.speculation import runtime

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tuning, "PRICED_S", 0.0)
        monkeypatch.setattr(runtime, "MEASURE_S", 0.2)
        yield


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("checkpoints") / "target", make_llama(128, 2, seed=1), make_tokenizer())


@pytest.fixture(scope="module")  # torch models are changed in place
def deep() -> Any:
    """A target in which a head can read three layers."""
    return make_llama(128, 6, seed=1)


@pytest.fixture(scope="module")
def deep_target(deep: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("checkpoints") / "deep", deep, make_tokenizer())


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("checkpoints") / "draft", make_llama(64, 1, seed=2), make_tokenizer())


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft of the same size whose id 1 means something else."""
    folder = tmp_path_factory.mktemp("checkpoints") / "stranger"
    return save(folder, make_llama(64, 1, seed=2), make_tokenizer(first_special="<|human|>"))


@pytest.fixture(scope="session")
def pair(target: Path, draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_pair(
        target,
        draft,
        tmp_path_factory.mktemp("pairs") / "pair",
        target_compression=Compression("int8"),
        draft_compression=Compression("int4", group_size=32),
    )
