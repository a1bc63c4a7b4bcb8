"""Tiny checkpoints with random weights, made on the spot, and a pair exported from them."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.export import Compression, export_pair, pair_export
from outrider.export.checkpoint import Checkpoint
from outrider.export.convert import compress, convert
from outrider.export.heads.convert_head import convert_head
from outrider.models.digest import sha256
from outrider.pipelines.model.tuning import fastest_properties

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


def save_renamed(source: Path, folder: Path, rename: Callable[[str], str]) -> Path:
    """A copy of a checkpoint with other names for its weights, and without those whose new name is empty."""
    from safetensors.torch import load_file, save_file

    weights = {rename(name): weight for name, weight in load_file(source / "model.safetensors").items()}
    weights.pop("", None)
    shutil.copytree(source, folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
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


def contents(folder: Path) -> tuple[tuple[str, str], ...]:
    """What is in a folder, to tell it from others."""
    return tuple(
        (file.relative_to(folder).as_posix(), sha256(file)) for file in sorted(folder.rglob("*")) if file.is_file()
    )


class Once:
    """Writes a folder by the one who makes it where nobody was asked for the same before, and else copies it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[Hashable, Path] = {}

    def write(self, wanted: Hashable, folder: Path, make: Callable[[], None]) -> None:
        if wanted not in self._made:
            make()
            self._made[wanted] = shutil.copytree(folder, self._root / str(len(self._made)))
        else:
            shutil.copytree(self._made[wanted], folder, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def tall(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with three layers, so that a head has something to read."""
    return save(tmp_path_factory.mktemp("tall") / "target", make_llama(64, 3, seed=1), make_tokenizer())


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Six of them, the last with messages, and an empty line."""
    path = tmp_path / "prompts.jsonl"
    lines: list[object] = [{"prompt": f"def area{n}(width"} for n in range(5)]
    lines.append({"messages": [{"role": "user", "content": "Repeat this function."}]})
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return path


@pytest.fixture(scope="session", autouse=True)
def converters_spared_by_garbage_collections() -> None:
    """Import all that conversions need, and take it out of the collections of garbage that they ask for several times
    each: one takes half a second otherwise."""
    import nncf  # noqa: F401
    import optimum.exporters.openvino.convert
    import optimum.intel  # noqa: F401

    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def torch_on_one_thread() -> None:
    """Several take ten times as long for models as small as these where anything else runs on the machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def converted_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Exports convert and compress the same checkpoint once, and measure the same target once: several tests of a pair
    begin with it. That a second conversion gives the same is tested without this."""
    once, measured = Once(tmp_path_factory.mktemp("converted")), {}

    def convert_once(checkpoint: Checkpoint, folder: Path, half: bool) -> None:
        wanted = ("model", contents(checkpoint.folder), checkpoint.architecture, half)
        once.write(wanted, folder, lambda: convert(checkpoint, folder, half))

    def convert_head_once(head: Checkpoint, target: Checkpoint, folder: Path) -> None:
        wanted = (head.head_kind, contents(head.folder), contents(target.folder))
        once.write(wanted, folder, lambda: convert_head(head, target, folder))

    def compress_once(folder: Path, compression: Compression, source: str) -> None:
        once.write((contents(folder), compression), folder, lambda: compress(folder, compression, source))

    def measured_once(folder: Path) -> dict[str, int]:
        model = tuple(sha256(folder / f"openvino_model.{kind}") for kind in ("xml", "bin"))
        if model not in measured:
            measured[model] = fastest_properties(folder)
        return dict(measured[model])

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(pair_export, "convert", convert_once)
        monkeypatch.setattr(pair_export, "convert_head", convert_head_once)
        monkeypatch.setattr(pair_export, "compress", compress_once)
        monkeypatch.setattr(pair_export, "fastest_properties", measured_once)
        yield


@pytest.fixture
def converted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports do all their work."""
    for work in (convert, convert_head, compress, fastest_properties):
        monkeypatch.setattr(pair_export, work.__name__, work)


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
