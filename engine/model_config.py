"""What a checkpoint says about its model, read from a Hugging Face folder, and what identifies its content.

An architecture or a setting that the engine does not compute exactly is refused by name; nothing is guessed.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

from engine.rope import RopeScaling

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
MODALITIES = ("vision_config", "audio_config", "image_token_id", "audio_token_id")
FINGERPRINT_FILE = ".pdserve_fingerprint.json"


class UnsupportedModelError(ValueError):
    """The folder does not hold a model that the engine computes; the message names the reason."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family: RMS norms, rotary positions, grouped queries, gated SiLU."""

    architecture: str  # one of ARCHITECTURES
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int  # tokens; at most the sliding window, within which plain attention is exact
    norm_epsilon: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    tie_embeddings: bool
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Raises `UnsupportedModelError`, also where config.json is missing or incomplete."""
        raw = _Settings(folder, _read_json(folder / "config.json"))
        architecture = _supported_architecture(raw)
        num_heads = raw.integer("num_attention_heads")
        rope_theta, rope_scaling = _rope(raw)
        attention_bias = raw.flag("attention_bias")
        return cls(
            architecture=architecture,
            vocab_size=raw.integer("vocab_size"),
            hidden_size=raw.integer("hidden_size"),
            intermediate_size=raw.integer("intermediate_size"),
            num_layers=raw.integer("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=raw.integer("num_key_value_heads", num_heads),
            head_dim=raw.integer("head_dim", raw.integer("hidden_size") // num_heads),
            max_model_len=_max_model_len(raw, architecture),
            norm_epsilon=raw.number("rms_norm_eps", 1e-6),
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
            output_bias=attention_bias and architecture != "Qwen2ForCausalLM",
            qk_norm=architecture == "Qwen3ForCausalLM",
            tie_embeddings=raw.flag("tie_word_embeddings"),
            eos_token_ids=_eos_token_ids(folder, raw),
        )


@dataclass(frozen=True, slots=True)
class _Settings:
    """A JSON object of settings; an absent one and a null are the same."""

    folder: Path
    values: dict[str, object]

    def refuse(self, reason: str) -> NoReturn:
        raise UnsupportedModelError(f"{self.folder}: {reason}")

    def get(self, name: str) -> object:
        return self.values.get(name)

    def number(self, name: str, default: float | None = None) -> float:
        value = default if self.get(name) is None else self.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(f"config.json gives no number for {name}")
        return float(value)

    def integer(self, name: str, default: int | None = None) -> int:
        return int(self.number(name, default))

    def flag(self, name: str) -> bool:
        return bool(self.get(name))


def _read_json(file: Path) -> dict[str, object]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UnsupportedModelError(f"{file} holds no JSON object")
    return content


def _supported_architecture(raw: _Settings) -> str:
    names = raw.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if any(raw.get(key) for key in EXPERTS):
        raw.refuse(f"mixture of experts is not supported ({name or 'no architecture named'})")
    if any(raw.get(key) is not None for key in MODALITIES):
        raw.refuse(f"multi-modal models are not supported ({name or 'no architecture named'})")
    if name not in ARCHITECTURES:
        raw.refuse(f"unknown architecture {name!r}; known are {', '.join(ARCHITECTURES)}")
    if quantization := raw.get("quantization_config"):
        method = quantization.get("quant_method", "unnamed") if isinstance(quantization, dict) else "unnamed"
        raw.refuse(f"quantised weights are not supported (quantization_config: {method})")
    if (activation := raw.get("hidden_act")) not in (None, "silu"):
        raw.refuse(f"hidden_act {activation!r} is not supported, only 'silu'")
    if raw.flag("mlp_bias"):
        raw.refuse("mlp_bias is not supported")
    return name


def _rope(raw: _Settings) -> tuple[float, RopeScaling | None]:
    """theta and scaling, as `rope_parameters` (newer) or as `rope_theta` and `rope_scaling` (older) give them."""
    values = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(values, dict) or any(isinstance(value, dict) for value in values.values()):
        raw.refuse("rope_parameters by layer type are not supported")
    rope = _Settings(raw.folder, cast(dict[str, object], values))
    theta = rope.number("rope_theta", raw.number("rope_theta", 10000.0))
    if any(settings.number("partial_rotary_factor", 1.0) != 1.0 for settings in (raw, rope)):
        raw.refuse("partial_rotary_factor is not supported")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raw.refuse(f"rope type {kind!r} is not supported; known are default, linear, llama3")
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling(factor=rope.number("factor"))
    return theta, RopeScaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_len=rope.integer("original_max_position_embeddings"),
    )


def _max_model_len(raw: _Settings, architecture: str) -> int:
    limit = raw.integer("max_position_embeddings")
    layer_types = raw.get("layer_types")
    if architecture == "MistralForCausalLM":
        window = raw.values.get("sliding_window", 4096)  # absent is 4096 there, and null is none
    elif raw.flag("use_sliding_window") or (isinstance(layer_types, list) and "sliding_attention" in layer_types):
        window = raw.integer("sliding_window")
    else:
        window = None
    return min(limit, window) if isinstance(window, int) else limit


def _eos_token_ids(folder: Path, raw: _Settings) -> tuple[int, ...]:
    file = folder / "generation_config.json"
    generation = _Settings(folder, _read_json(file) if file.is_file() else {})
    value = generation.get("eos_token_id")
    value = raw.get("eos_token_id") if value is None else value
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token_id, int) for token_id in ids):
        raw.refuse(f"eos_token_id {value!r} is neither a number nor a list of numbers")
    return tuple(ids)


def model_fingerprint(folder: Path) -> str:
    """A strong hash of the configuration and the weights, the same wherever the same files lie.

    Kept in a small file beside the weights, where that can be written, and trusted while no size or time has changed.
    """
    files = sorted([folder / "config.json", *folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")])
    state = {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}
    sidecar = folder / FINGERPRINT_FILE
    try:
        known = json.loads(sidecar.read_text())
        if known["files"] == state:
            return str(known["fingerprint"])
    except (OSError, ValueError, TypeError, KeyError):
        pass  # not there yet, or damaged: made again below
    digest = hashlib.blake2b(digest_size=32)
    for file in files:
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as content:
            while piece := content.read(1 << 22):
                digest.update(piece)
    _write_sidecar(sidecar, {"files": state, "fingerprint": digest.hexdigest()})
    return digest.hexdigest()


def _write_sidecar(file: Path, content: dict[str, object]) -> None:
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=file.name) as work:
            made = Path(work) / file.name
            made.write_text(json.dumps(content))
            made.replace(file)
    except OSError:
        return  # a read-only folder: the next start computes it again
