"""Turns a Llama GGUF with a byte-level BPE tokenizer into an ordinary Hugging Face folder with float32 weights.

Weights are dequantised and written one tensor at a time, so memory stays near the largest tensor; anything in the file
that has no place in the folder is an error.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize

T = TypeVar("T")
Report = Callable[[float], None]  # the share done so far, from 0 to 1

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
PRE_TOKENIZERS = {
    "smollm": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ]
}
CONTROL_TOKEN = 3  # in GGUF's tokenizer.ggml.token_type


class UnsupportedGgufError(ValueError):
    """The file holds something that this conversion does not know."""


def convert(gguf_file: Path, folder: Path, report: Report = lambda share: None) -> None:
    """Writes config, generation config, tokenizer and weights into `folder`, which must exist."""
    reader = GGUFReader(gguf_file)
    if (architecture := _field(reader, "general.architecture", str)) != "llama":
        raise UnsupportedGgufError(f"{gguf_file.name}: architecture {architecture!r}, only 'llama' can be converted")
    _write_json(folder / "tokenizer.json", _tokenizer(reader))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(reader))
    _write_json(folder / "generation_config.json", {"_from_model_config": True, **_token_ids(reader)})
    _write_weights(reader, folder / "model.safetensors", report)
    _write_json(folder / "config.json", _config(reader))


def _field(reader: GGUFReader, name: str, kind: type[T]) -> T:
    field = reader.fields.get(name)
    if field is None:
        raise UnsupportedGgufError(f"the GGUF has no field {name!r}")
    value = field.contents()
    if not isinstance(value, kind):
        raise UnsupportedGgufError(f"the GGUF's field {name!r} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def _write_json(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _token_ids(reader: GGUFReader) -> dict[str, int]:
    return {
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id", int),
        "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id", int),
        "pad_token_id": _field(reader, "tokenizer.ggml.padding_token_id", int),
    }


def _config(reader: GGUFReader) -> dict[str, object]:
    num_heads = _field(reader, "llama.attention.head_count", int)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _field(reader, "llama.embedding_length", int),
        "intermediate_size": _field(reader, "llama.feed_forward_length", int),
        "num_hidden_layers": _field(reader, "llama.block_count", int),
        "num_attention_heads": num_heads,
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv", int),
        "head_dim": _field(reader, "llama.embedding_length", int) // num_heads,
        "hidden_act": "silu",
        "max_position_embeddings": _field(reader, "llama.context_length", int),
        # the file holds float32 numbers: 7 digits are all there is
        "rms_norm_eps": float(f"{_field(reader, 'llama.attention.layer_norm_rms_epsilon', float):.7g}"),
        "rope_theta": _field(reader, "llama.rope.freq_base", float),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "vocab_size": len(_field(reader, "tokenizer.ggml.tokens", list)),
        "torch_dtype": "float32",
        **_token_ids(reader),
    }


def _tokenizer(reader: GGUFReader) -> dict[str, object]:
    pre_tokenizer = _field(reader, "tokenizer.ggml.pre", str)
    if pre_tokenizer not in PRE_TOKENIZERS:
        raise UnsupportedGgufError(f"pre-tokenizer {pre_tokenizer!r}; known: {', '.join(PRE_TOKENIZERS)}")
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens", list)
    kinds: list[int] = _field(reader, "tokenizer.ggml.token_type", list)
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token, **added}
            for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == CONTROL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre_tokenizer]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": _field(reader, "tokenizer.ggml.merges", list),
        },
    }


def _tokenizer_config(reader: GGUFReader) -> dict[str, object]:
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens", list)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",  # the one that takes tokenizer.json as it is
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": _field(reader, "llama.context_length", int),
        "bos_token": tokens[_field(reader, "tokenizer.ggml.bos_token_id", int)],
        "eos_token": tokens[_field(reader, "tokenizer.ggml.eos_token_id", int)],
        "pad_token": tokens[_field(reader, "tokenizer.ggml.padding_token_id", int)],
        "unk_token": tokens[_field(reader, "tokenizer.ggml.unknown_token_id", int)],
        "chat_template": _field(reader, "tokenizer.chat_template", str),
    }


def _hugging_face_name(name: str) -> str:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    prefix, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    if prefix != "blk" or part not in LAYER_NAMES:
        raise UnsupportedGgufError(f"the GGUF's tensor {name!r} has no counterpart in a Llama checkpoint")
    return f"model.layers.{int(layer)}.{LAYER_NAMES[part]}"


def _write_weights(reader: GGUFReader, file: Path, report: Report) -> None:
    """The safetensors format: header length, JSON header, then the tensors one after the other."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in reader.tensors:
        start, end = end, end + 4 * int(tensor.n_elements)
        shape = [int(n) for n in reversed(tensor.shape)]
        header[_hugging_face_name(tensor.name)] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    heads = {
        "attn_q": _field(reader, "llama.attention.head_count", int),
        "attn_k": _field(reader, "llama.attention.head_count_kv", int),
    }
    written = 0
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in reader.tensors:
            written += out.write(_float32(tensor, heads).data)
            report(written / end)


def _float32(tensor: ReaderTensor, heads: dict[str, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    part = tensor.name.split(".")[-2]
    if part in heads:  # llama.cpp interleaves the two rope halves of each head's rows
        rows, columns = weight.shape
        weight = weight.reshape(heads[part], rows // heads[part] // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    return np.ascontiguousarray(weight)
