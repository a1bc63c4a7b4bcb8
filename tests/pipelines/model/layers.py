"""A Llama in NumPy, slow and plain: every row of a text is computed at once, without a cache."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import openvino as ov


class Llama:
    """The model of an IR folder, with its weights as they are stored."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.num_layers, self._eps = config["num_hidden_layers"], config["rms_norm_eps"]
        self._size, self._heads = config["head_dim"], config["num_attention_heads"]
        self._groups = self._heads // config["num_key_value_heads"]
        self._theta = config["rope_parameters"]["rope_theta"]
        self._weights: dict[str, np.ndarray] = {}
        for node in ov.Core().read_model(folder / "openvino_model.xml").get_ordered_ops():
            name = node.get_friendly_name().removeprefix("__module.").removeprefix("model.")
            if name.endswith(("/ov_ext::linear/MatMul", "norm/aten::mul/Multiply_1")):
                found = [values for each in node.input_values() if (values := _values(each)) is not None]
                self._weights[name.split("/")[0]] = found[0] if found[0].shape[0] > 1 else found[0].reshape(-1)

    def logits(self, tokens: Sequence[int], num_whole: int, skipped: Collection[int] = ()) -> np.ndarray:
        """Logits after every token, float64 [tokens, vocabulary]. Tokens from `num_whole` on skip layers."""
        states = self._weights["lm_head"][list(tokens)]
        for layer in range(self.num_layers):
            num_rows = num_whole if layer in skipped else len(tokens)
            rows = states[:num_rows]
            rows = rows + self._attention(layer, self._normed(rows, f"layers.{layer}.input_layernorm"))
            rows = rows + self._gated(layer, self._normed(rows, f"layers.{layer}.post_attention_layernorm"))
            states = np.concatenate([rows, states[num_rows:]])
        return self._normed(states, "norm") @ self._weights["lm_head"].T

    def _attention(self, layer: int, rows: np.ndarray) -> np.ndarray:
        parts = [rows @ self._weights[f"layers.{layer}.self_attn.{name}_proj"].T for name in "qkv"]
        queries, keys, values = (part.reshape(len(rows), -1, self._size).transpose(1, 0, 2) for part in parts)
        queries, keys = self._rotated(queries), self._rotated(keys)
        keys, values = np.repeat(keys, self._groups, 0), np.repeat(values, self._groups, 0)
        scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(self._size)
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        out = (shares @ values).transpose(1, 0, 2).reshape(len(rows), -1)
        return out @ self._weights[f"layers.{layer}.self_attn.o_proj"].T

    def _rotated(self, vectors: np.ndarray) -> np.ndarray:
        half = self._size // 2
        angles = np.arange(vectors.shape[1])[:, None] / self._theta ** (np.arange(half) / half)
        first, second = vectors[..., :half], vectors[..., half:]
        sine, cosine = np.sin(angles), np.cos(angles)
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    def _gated(self, layer: int, rows: np.ndarray) -> np.ndarray:
        gate, up, down = (self._weights[f"layers.{layer}.mlp.{name}_proj"] for name in ("gate", "up", "down"))
        opened = rows @ gate.T
        return (opened / (1 + np.exp(-opened)) * (rows @ up.T)) @ down.T

    def _normed(self, rows: np.ndarray, name: str) -> np.ndarray:
        return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + self._eps) * self._weights[name]


def _values(output: ov.Output) -> np.ndarray | None:
    """What constants are computed to; None if it is anything else."""
    node = output.get_node()
    match node.get_type_name():
        case "Constant":
            return node.data.astype(np.float64)
        case "Convert":
            return _values(node.input_value(0))
        case "Multiply":
            first, second = _values(node.input_value(0)), _values(node.input_value(1))
            return None if first is None or second is None else first * second
    return None
