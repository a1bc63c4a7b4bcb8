"""A checkpoint as llama.cpp reads it: written with `gguf`, quantized by llama.cpp itself."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import llama_cpp
import torch
from transformers import AutoConfig, LlamaForCausalLM

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_q4_0(checkpoint: Path, out: Path) -> None:
    """Write a Llama checkpoint with tied embeddings to `out` in Q4_0. Raises RuntimeError where llama.cpp cannot."""
    half = out.with_suffix(".f16.gguf")
    write_f16(checkpoint, half)
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    code = llama_cpp.llama_model_quantize(str(half).encode(), str(out).encode(), ctypes.byref(params))
    half.unlink()
    if code:
        raise RuntimeError(f"llama.cpp could not quantize {half}: code {code}")


def write_f16(checkpoint: Path, out: Path) -> None:
    """Write the matrices in half precision, the norms in single, and no tokenizer: prompts come in tokens."""
    config = AutoConfig.from_pretrained(checkpoint)
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("no_vocab")
    model = LlamaForCausalLM.from_pretrained(checkpoint)
    for name, weight in model.named_parameters():
        values = weight.detach()
        if ".q_proj." in name or ".k_proj." in name:
            values = _interleaved(values, config.head_dim)
        writer.add_tensor(_name(name), (values.float() if values.ndim == 1 else values.half()).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, *rest, _ = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(rest)]}.weight"


def _interleaved(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """llama.cpp turns neighbouring rows of a head together, transformers those half a head apart."""
    heads = weight.reshape(-1, 2, head_dim // 2, weight.shape[1])
    return heads.transpose(1, 2).reshape(weight.shape).contiguous()
