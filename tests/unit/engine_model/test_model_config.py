"""What a folder says about its model: read from old and new forms of config.json, refused by name otherwise."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine.model_config import FINGERPRINT_FILE, ModelConfig, UnsupportedModelError, model_fingerprint
from engine.rope import RopeScaling

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "eos_token_id": 2,
}


def read(folder: Path, **changes: object) -> ModelConfig:
    values = {name: value for name, value in {**LLAMA, **changes}.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(values))
    return ModelConfig.from_folder(folder)


def test_a_llama_is_read(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config.head_dim == 16
    assert config.num_kv_heads == 2
    assert config.rope_theta == 500000.0
    assert config.rope_scaling is None
    assert config.max_model_len == 2048
    assert (config.qkv_bias, config.output_bias, config.qk_norm, config.tie_embeddings) == (False,) * 4


def test_an_absent_number_of_kv_heads_is_one_for_each_head(tmp_path: Path) -> None:
    assert read(tmp_path, num_key_value_heads="absent").num_kv_heads == 4


def test_biases_and_norms_follow_the_architecture(tmp_path: Path) -> None:
    llama = read(tmp_path, attention_bias=True)
    qwen2 = read(tmp_path, architectures=["Qwen2ForCausalLM"])
    qwen3 = read(tmp_path, architectures=["Qwen3ForCausalLM"], head_dim=32)
    assert (llama.qkv_bias, llama.output_bias, llama.qk_norm) == (True, True, False)
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.output_bias, qwen3.qk_norm, qwen3.head_dim) == (False, False, True, 32)


@pytest.mark.parametrize(
    ("settings", "scaling"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, RopeScaling(4.0)),
        ({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0}}, RopeScaling(4.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "rope_theta": "absent"}, None),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 32.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                }
            },
            RopeScaling(32.0, 1.0, 4.0, 8192),
        ),
    ],
)
def test_rope_is_read_in_its_old_and_new_form(
    settings: dict[str, object], scaling: RopeScaling | None, tmp_path: Path
) -> None:
    config = read(tmp_path, **settings)
    assert config.rope_theta == 500000.0
    assert config.rope_scaling == scaling


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 256}, 256),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, 2048),
        ({"architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768}, 4096),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 256, "use_sliding_window": False}, 2048),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 256, "use_sliding_window": True}, 256),
        ({"sliding_window": 256}, 2048),
    ],
)
def test_a_sliding_window_limits_the_length(settings: dict[str, object], limit: int, tmp_path: Path) -> None:
    assert read(tmp_path, **settings).max_model_len == limit


def test_end_of_text_comes_from_the_generation_config_first(tmp_path: Path) -> None:
    assert read(tmp_path).eos_token_ids == (2,)
    assert read(tmp_path, eos_token_id=[2, 7]).eos_token_ids == (2, 7)
    assert read(tmp_path, eos_token_id=None).eos_token_ids == ()
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert read(tmp_path).eos_token_ids == (5, 6)
    (tmp_path / "generation_config.json").write_text("{}")
    assert read(tmp_path).eos_token_ids == (2,)


REFUSALS = {
    "GPT2LMHeadModel.*LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM": {
        "architectures": ["GPT2LMHeadModel"]
    },
    "unknown architecture ''": {"architectures": "absent"},
    "mixture of experts .*MixtralForCausalLM": {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8},
    "multi-modal .*LlavaForConditionalGeneration": {
        "architectures": ["LlavaForConditionalGeneration"],
        "vision_config": {},
    },
    "quantised .*gptq": {"quantization_config": {"quant_method": "gptq"}},
    "hidden_act 'gelu'": {"hidden_act": "gelu"},
    "mlp_bias": {"mlp_bias": True},
    "rope type 'yarn'": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "by layer type": {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
    "partial_rotary_factor": {"partial_rotary_factor": 0.5},
    "no number for hidden_size": {"hidden_size": "absent"},
    "no number for vocab_size": {"vocab_size": "many"},
    "no number for factor": {"rope_scaling": {"rope_type": "linear"}},
    "eos_token_id": {"eos_token_id": "</s>"},
}


@pytest.mark.parametrize(("message", "settings"), REFUSALS.items())
def test_what_is_not_computed_is_refused_by_name(message: str, settings: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(tmp_path, **settings)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_config_that_cannot_be_read_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UnsupportedModelError, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "a"
    folder.mkdir()
    read(folder)
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_the_fingerprint_depends_on_content_only(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "b"
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "tokenizer.json").write_text("{}")
    first = model_fingerprint(folder)
    assert model_fingerprint(other) == first

    (other / "model.safetensors").write_bytes(b"weighty")
    assert model_fingerprint(other) != first
    (other / "model.safetensors").write_bytes(b"weights")
    assert model_fingerprint(other) == first
    read(other, rms_norm_eps=1e-6)
    assert model_fingerprint(other) != first


def test_a_known_fingerprint_is_trusted_until_a_file_changes(folder: Path) -> None:
    first = model_fingerprint(folder)
    weights = folder / "model.safetensors"
    stat = weights.stat()
    weights.write_bytes(b"changed")
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert model_fingerprint(folder) == first  # same size and time: not read again
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert model_fingerprint(folder) != first


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"files": 3}'])
def test_a_damaged_sidecar_is_made_anew(damage: str, folder: Path) -> None:
    first = model_fingerprint(folder)
    (folder / FINGERPRINT_FILE).write_text(damage)
    assert model_fingerprint(folder) == first
    assert json.loads((folder / FINGERPRINT_FILE).read_text())["fingerprint"] == first


def test_a_sidecar_that_cannot_be_written_does_no_harm(folder: Path) -> None:
    (folder / FINGERPRINT_FILE).mkdir()  # even root cannot replace a directory by a file
    assert model_fingerprint(folder) == model_fingerprint(folder)
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        [FINGERPRINT_FILE, "config.json", "model.safetensors"]
    )
