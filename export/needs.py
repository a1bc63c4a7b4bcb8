"""What models need that cannot be run yet, by their configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LINEAR = ("linear_num_key_heads", "linear_attn_config")
MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def needs_of_model(config: Mapping[str, Any]) -> list[str]:
    """What the model itself needs that cannot be run yet."""
    text = _text(config)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    kinds = text.get("layer_types") or ()
    found = {
        "a vision part": "vision_config" in config,
        "an audio part": "audio_config" in config,
        "positions of three numbers a token (M-RoPE)": "mrope_section" in rope,
        "linear attention": "linear_attention" in kinds or any(name in text for name in LINEAR),
    }
    return [name for name, is_needed in found.items() if is_needed]


def needs_of_head(config: Mapping[str, Any]) -> list[str]:
    """What the head of multi-token prediction in a model's checkpoint needs in addition: its layer is like those of the
    model."""
    text = _text(config)
    found = {
        "multi-head latent attention": text.get("kv_lora_rank"),
        "mixtures of experts": any(text.get(name) for name in EXPERTS),
    }
    return [name for name, is_needed in found.items() if is_needed]


def has_head(config: Mapping[str, Any]) -> bool:
    """Whether a model's checkpoint holds a head of multi-token prediction."""
    return any(_text(config).get(name) for name in MTP_LAYERS)


def listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part about the decoder, where models of several kinds of input have it apart."""
    return config.get("text_config") or config
