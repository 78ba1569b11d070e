"""A GGUF made as llama.cpp makes it becomes the folder that transformers would have saved."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from deploy.gguf_to_hf import UnsupportedGgufError, convert
from tests.unit.engine_model.tiny_gguf import TOKENS, write_gguf
from tests.unit.engine_model.tiny_models import save_tiny


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny("llama", folder, vocab_size=len(TOKENS), rms_norm_eps=1e-5)
    return dict(load_file(folder / "model.safetensors"))


def test_weights_come_back_in_hugging_face_order_and_float32(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", weights)
    shares: list[float] = []
    convert(tmp_path / "m.gguf", tmp_path, shares.append)
    made = load_file(tmp_path / "model.safetensors")
    assert made.keys() == weights.keys()
    for name, tensor in made.items():
        assert tensor.dtype == torch.float32
        tolerance = 0.1 if "down_proj" in name else 0
        torch.testing.assert_close(tensor, weights[name], atol=tolerance, rtol=0)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_transformers_loads_the_folder(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", weights)
    convert(tmp_path / "m.gguf", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.tie_word_embeddings
    assert (model.config.num_key_value_heads, model.config.rms_norm_eps) == (2, 1e-5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("ab<|end|>a").input_ids == [3, 0, 1]
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "user:hi"


def test_digits_are_split_one_by_one(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", weights)
    convert(tmp_path / "m.gguf", tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("a11 ab").ids == [1, 5, 5, 4, 3]


def add_unknown_tensor(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("blk.0.attn_q.bias", np.ones(64, np.float32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "qwen2"}, "architecture 'qwen2'"),
        ({"pre_tokenizer": "llama-bpe"}, "pre-tokenizer 'llama-bpe'; known: smollm"),
        ({"change": add_unknown_tensor}, r"'blk\.0\.attn_q\.bias' has no counterpart"),
    ],
)
def test_what_cannot_be_converted_is_refused(
    changes: dict[str, object], message: str, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    write_gguf(tmp_path / "m.gguf", weights, **changes)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedGgufError, match=message):
        convert(tmp_path / "m.gguf", tmp_path)


def test_a_missing_field_is_named(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.ones((2, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedGgufError, match=r"no field 'tokenizer\.ggml\.pre'"):
        convert(tmp_path / "m.gguf", tmp_path)
