"""Heads of multi-token prediction (DeepSeek-V3, arXiv 2412.19437) to OpenVINO's IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from outrider.pipelines.model.heads.head_kind import LAYERS, MTP

from ..checkpoint import RENAMED, Checkpoint
from ..convert import TASK
from ..quiet import quiet
from .ir import rewrite
from .optimum_intel import converting, language_config, load_weights, write_ir
from .sizes import check_sizes
from .weights import read_weights


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a kind of checkpoint names the weights of its first head.

    prefix: of all names.
    names: prefixes of the parts outside of the decoder layer, by their names here.
    layer: prefix of the decoder layer.
    hidden_first: whether the projection reads the hidden state before the embedding.
    """

    prefix: str
    names: Mapping[str, str]
    layer: str
    hidden_first: bool = False


OUTSIDE = {"enorm": "enorm.", "hnorm": "hnorm.", "eh_proj": "eh_proj.", "model.norm": "norm."}
MIMO = {
    "enorm": "token_layernorm.",
    "hnorm": "hidden_layernorm.",
    "eh_proj": "input_proj.",
    "model.norm": "final_layernorm.",
}
LAYOUTS = {
    "MtpHead": _Layout("", OUTSIDE, "layer."),
    "MiMoForCausalLM": _Layout("model.mtp_layers.0.", MIMO, "", hidden_first=True),
}
JOINED = "eh_proj.weight"


def convert_mtp(head: Checkpoint, target: Checkpoint, folder: Path) -> None:
    """Write the head's IR and configuration to `folder`, as optimum-intel builds those of other models, without the
    embedding and the projection of the target.

    Raises UnsupportedModel for a head of another target, and ConversionFailed.
    """
    with quiet():
        of_target, config = language_config(target), _layer_config(head)
        check_sizes(
            head,
            target,
            ("tokens in its vocabulary", of_target.vocab_size, config.vocab_size),
            ("numbers in a hidden state", of_target.hidden_size, config.hidden_size),
        )
        with converting(head):
            load_weights(model := _new_head(config), _weights(head), "an MTP head")
            write_ir(model, folder, custom_export_configs={"model": _export_config(config)})
    rewrite(folder, partial(_describe, num_layers=of_target.num_hidden_layers))


def _describe(model: Any, num_layers: int) -> None:
    """A head reads what the target's projection reads, for which the number of layers stands."""
    model.set_rt_info("True", [MTP])
    model.set_rt_info([num_layers], [LAYERS])


def _layer_config(head: Checkpoint) -> Any:
    """The configuration of a decoder of a single layer, such as the head's."""
    from transformers import AutoConfig

    config = head.config()
    _, model_type = RENAMED.get(head.architecture, ("", config.get("model_type", "llama")))
    for name in ("architectures", "auto_map", "model_type", "layer_types"):
        config.pop(name, None)
    return AutoConfig.for_model(model_type, **{**config, "num_hidden_layers": 1, "tie_word_embeddings": False})


def _weights(head: Checkpoint) -> dict[str, Any]:
    """The weights by the names that they have in `_new_head`."""
    import torch

    layout = LAYOUTS[head.architecture]
    weights: dict[str, Any] = {}
    for name, weight in read_weights(head.folder, layout.prefix).items():
        part = next((part for part, theirs in layout.names.items() if name.startswith(theirs)), None)
        if part is not None:
            weights[f"{part}.{name.removeprefix(layout.names[part])}"] = weight
        elif name.startswith(layout.layer):
            weights[f"model.layers.0.{name.removeprefix(layout.layer)}"] = weight
        else:
            weights[name] = weight
    if layout.hidden_first and JOINED in weights:
        weights[JOINED] = torch.cat(weights[JOINED].chunk(2, -1)[::-1], -1)
    return weights


def _new_head(config: Any) -> Any:
    """An untrained head: what its layer reads is projected from an embedding and a hidden state."""
    import torch
    from transformers import AutoModel, GenerationMixin, PreTrainedModel

    class Mtp(PreTrainedModel, GenerationMixin):
        config_class = type(config)

        def __init__(self) -> None:
            super().__init__(config)
            self.model = AutoModel.from_config(config)
            self.model.embed_tokens = None
            norm = type(self.model.norm)
            self.enorm, self.hnorm = (norm(config.hidden_size, config.rms_norm_eps) for _ in range(2))
            self.eh_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)

        def forward(
            self,
            inputs_embeds: Any,
            hidden_states: Any,
            attention_mask: Any = None,
            position_ids: Any = None,
            past_key_values: Any = None,
        ) -> Any:
            joined = self.eh_proj(torch.cat([self.enorm(inputs_embeds), self.hnorm(hidden_states)], -1))
            return self.model(None, attention_mask, position_ids, past_key_values, joined, use_cache=True)

    return Mtp()


def _export_config(config: Any) -> Any:
    """The export configuration of a decoder that reads embeddings and hidden states instead of tokens and outputs
    hidden states."""
    import optimum.exporters.openvino.model_configs  # noqa: F401  registers the architectures
    from optimum.exporters.tasks import TasksManager
    from optimum.utils.input_generators import DummyTextInputGenerator

    of_decoder: Callable[..., Any] = TasksManager.get_exporter_config_constructor(
        "openvino", model_type=config.model_type, task=TASK, library_name="transformers"
    )
    base: Any = of_decoder.func if isinstance(of_decoder, partial) else of_decoder
    read = {name: {0: "batch_size", 1: "sequence_length"} for name in ("inputs_embeds", "hidden_states")}

    class States(DummyTextInputGenerator):
        SUPPORTED_INPUT_NAMES = tuple(read)

        def generate(
            self, input_name: str, framework: str = "pt", int_dtype: str = "int64", float_dtype: str = "fp32"
        ) -> Any:
            shape = (self.batch_size, self.sequence_length, config.hidden_size)
            return self.random_float_tensor(shape, framework=framework, dtype=float_dtype)

    class MtpConfig(base):
        DUMMY_INPUT_GENERATOR_CLASSES = (States, *base.DUMMY_INPUT_GENERATOR_CLASSES)

        @property
        def inputs(self) -> dict[str, Any]:
            return {**read, **{name: axes for name, axes in super().inputs.items() if name != "input_ids"}}

        @property
        def outputs(self) -> dict[str, Any]:
            states = {"last_hidden_state": {0: "batch_size", 1: "sequence_length"}}
            return {**states, **{name: axes for name, axes in super().outputs.items() if name != "logits"}}

    return MtpConfig(config, task="text-generation", use_past=True, use_past_in_inputs=True)
