"""A checkpoint is read whole, from one file or from shards, or refused with the tensor's name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.batch import Batch, Work
from engine.model_config import UnsupportedModelError
from tests.unit.engine_model.tiny_models import load_runner, make_request, save_tiny


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replaces, adds or (None) drops tensors; names have __ for a dot."""
    weights = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        weights.pop(name.replace("__", "."), None)
        if tensor is not None:
            weights[name.replace("__", ".")] = tensor
    save_file(weights, folder / "model.safetensors")


def test_shards_are_the_same_model_as_one_file(tmp_path: Path) -> None:
    model = save_tiny("qwen3", tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    answers = [
        load_runner(tmp_path / name).run(Batch((Work(make_request([5, 6, 7], [0]), 0, 3, True),)))
        for name in ("whole", "shards")
    ]
    assert answers[0] == answers[1]


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    change(tmp_path, model__layers__1__mlp__up_proj__weight=None)
    with pytest.raises(UnsupportedModelError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        load_runner(tmp_path)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    change(tmp_path, model__norm__weight=torch.ones(63))
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight has the shape \[63\].*\[64\]"):
        load_runner(tmp_path)


def test_a_tensor_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    change(tmp_path, model__layers__0__self_attn__q_proj__bias=torch.ones(64))
    with pytest.raises(UnsupportedModelError, match=r"does not use: model\.layers\.0\.self_attn\.q_proj\.bias$"):
        load_runner(tmp_path)


def test_constants_of_old_checkpoints_and_a_tied_head_are_skipped(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    change(
        tmp_path, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8), lm_head__weight=torch.ones(97, 64)
    )
    load_runner(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModelError, match=r"model\.safetensors cannot be read"):
        load_runner(tmp_path)


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'])
def test_a_broken_index_is_refused(content: str, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(UnsupportedModelError, match="cannot be read"):
        load_runner(tmp_path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UnsupportedModelError, match="cannot be read"):
        load_runner(tmp_path)


def test_half_precision_weights_are_computed_in_float32(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(weights, tmp_path / "model.safetensors")
    assert load_runner(tmp_path).model.embedding.dtype == torch.float32
