"""Writes small GGUF files in llama.cpp's conventions: its names, and its order of the rows of q and k."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

TOKENS = ["<|end|>", "a", "b", "ab", "Ġ", "1"]
TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
}


def gguf_name(name: str) -> str:
    parts = name.removeprefix("model.").split(".")
    if parts[0] == "layers":
        return f"blk.{parts[1]}.{NAMES['.'.join(parts[2:-1])]}.weight"
    return f"{NAMES[parts[0]]}.weight"


def interleaved(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """llama.cpp's order of the rows of q and k."""
    return weight.reshape(num_heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    file: Path, weights: dict[str, torch.Tensor], change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    architecture: str = "llama", pre_tokenizer: str = "smollm",
) -> None:  # fmt: skip
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in weights.items():
        array = tensor.detach().numpy()
        if "q_proj" in name or "k_proj" in name:
            array = interleaved(array, 4 if "q_proj" in name else 2)
        if "down_proj" in name:
            quantised = gguf.quantize(array, gguf.GGMLQuantizationType.Q4_1)
            writer.add_tensor(gguf_name(name), quantised, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        else:
            writer.add_tensor(gguf_name(name), array)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tiny_gguf(file: Path) -> None:
    """A whole model with small random weights."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"embed_tokens": (len(TOKENS), 64), "norm": (64,)}
    for layer in range(2):
        shapes |= {
            f"layers.{layer}.{name}": shape
            for name, shape in {
                "input_layernorm": (64,),
                "self_attn.q_proj": (64, 64),
                "self_attn.k_proj": (32, 64),
                "self_attn.v_proj": (32, 64),
                "self_attn.o_proj": (64, 64),
                "post_attention_layernorm": (64,),
                "mlp.gate_proj": (96, 64),
                "mlp.up_proj": (96, 64),
                "mlp.down_proj": (64, 96),
            }.items()
        }
    write_gguf(
        file, {f"model.{name}.weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    )
