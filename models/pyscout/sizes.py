"""The two sizes of the pair: architecture and training budget of target and draft."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import LlamaConfig, LlamaForCausalLM

from outrider.export.distill import Distillation, Unrolling
from outrider.export.distill.kinds import SharingKind

from .tokenizer import MAX_POSITIONS, SPECIAL, VOCABULARY


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama: widths in units, `heads` of `head` units each, tied embeddings."""

    width: int
    layers: int
    heads: int
    key_value_heads: int
    head: int
    feed_forward: int

    def build(self) -> LlamaForCausalLM:
        """The model with fresh weights, float32."""
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_value_heads,
            head_dim=self.head,
            intermediate_size=self.feed_forward,
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=SPECIAL.index("<|end|>"),
            pad_token_id=SPECIAL.index("<|pad|>"),
        )
        return LlamaForCausalLM(config)


@dataclass(frozen=True, slots=True)
class Size:
    """A target and its draft. `*_tokens` are training budgets in tokens (padding included).

    distillation_prompts: how many prompts the target answers for the draft and the head to learn from.
    taps: the layers of the target that the head reads.
    head, head_unrolling, head_feed_forward: how it is trained, and the units of its feed-forward layer, of which it
        needs fewer than the target: half of what a drafted token would read is there.
    other_heads: how heads of the other kinds are trained, which do not come with the pair.
    """

    target: Shape
    draft: Shape
    target_tokens: int
    draft_tokens: int
    batch_tokens: int
    distillation_prompts: int
    distillation: Distillation
    taps: tuple[int, int, int]
    head: Distillation
    head_unrolling: Unrolling
    head_feed_forward: int
    other_heads: dict[SharingKind, Distillation]


SIZES = {
    "small": Size(
        target=Shape(width=256, layers=6, heads=4, key_value_heads=2, head=64, feed_forward=704),
        draft=Shape(width=80, layers=3, heads=2, key_value_heads=1, head=64, feed_forward=160),
        target_tokens=75_000_000,
        draft_tokens=12_000_000,
        batch_tokens=8_192,
        distillation_prompts=25_000,
        distillation=Distillation(
            epochs=3, batch_size=128, max_new_tokens=224, learning_rate=2e-3, matrix_rate=6e-3
        ),
        taps=(0, 3, 5),
        head=Distillation(epochs=8, batch_size=128, learning_rate=1.5e-3, matrix_rate=6e-3, group_size=16),
        head_unrolling=Unrolling(steps=8, decay=0.9, places=48),
        head_feed_forward=256,
        other_heads={
            "medusa": Distillation(epochs=5, batch_size=128, learning_rate=2e-3, matrix_rate=8e-3),
            "hydra": Distillation(epochs=5, batch_size=128, learning_rate=2e-3, matrix_rate=8e-3),
            "mtp": Distillation(epochs=3, batch_size=128, learning_rate=2e-3, matrix_rate=8e-3),
            "exit": Distillation(epochs=6, batch_size=128, learning_rate=2e-3, matrix_rate=8e-3),
        },
    ),
    "base": Size(
        target=Shape(width=512, layers=8, heads=8, key_value_heads=4, head=64, feed_forward=1408),
        draft=Shape(width=192, layers=4, heads=3, key_value_heads=1, head=64, feed_forward=480),
        target_tokens=600_000_000,
        draft_tokens=150_000_000,
        batch_tokens=65_536,
        distillation_prompts=100_000,
        distillation=Distillation(epochs=3, batch_size=512, max_new_tokens=300, learning_rate=2e-3, matrix_rate=6e-3),
        taps=(0, 4, 7),
        head=Distillation(epochs=4, batch_size=128, learning_rate=1e-3, matrix_rate=6e-3, group_size=16),
        head_unrolling=Unrolling(steps=8, decay=0.9, places=48),
        head_feed_forward=512,
        other_heads={
            kind: Distillation(epochs=4, batch_size=128, learning_rate=2e-3, matrix_rate=8e-3)
            for kind in ("medusa", "hydra", "mtp", "exit")
        },
    ),
}
