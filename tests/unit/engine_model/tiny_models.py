"""Tiny random models of each architecture, saved as transformers saves them, and sequences to run through ours."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from torch import Tensor

from engine.attention import AttentionMetadata
from engine.batch import Work
from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.torch_runner import TorchRunner, load_torch_runner

VOCAB_SIZE = 97
SHAPE: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
TINY_MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True}),
    "llama with llama3 rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama with linear rope": ("Llama", {"rope_parameters": LINEAR_ROPE}),
    "llama with a head_dim of its own": ("Llama", {"head_dim": 24}),
    "mistral": ("Mistral", {"sliding_window": None, "num_key_value_heads": 1}),
    "mistral within its window": ("Mistral", {"sliding_window": 300}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
}


def save_tiny(name: str, folder: Path, **changes: object) -> transformers.PreTrainedModel:
    """Writes a model of TINY_MODELS into `folder` and returns it."""
    family, settings = TINY_MODELS[name]
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **settings, **changes})
    torch.manual_seed(7)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for weight in model.parameters():  # norms start as ones and biases as zeros, which would hide a wrong one
        if weight.ndim == 1:
            torch.nn.init.normal_(weight, mean=1.0, std=0.3)
    model.save_pretrained(folder)
    return model


def load_runner(folder: Path, block_size: int = 4, num_blocks: int = 256) -> TorchRunner:
    return load_torch_runner(folder, EngineConfig(block_size=block_size, num_blocks=num_blocks))


def make_request(token_ids: list[int], blocks: list[int], sampling: SamplingParams | None = None) -> Request:
    request = Request("r", list(token_ids), len(token_ids), sampling or SamplingParams(max_tokens=100))
    request.blocks = blocks
    return request


@torch.inference_mode()
def logits_of(runner: TorchRunner, works: list[Work]) -> Tensor:
    """The logits of every token of the batch, `[num_tokens, vocab_size]`."""
    token_ids = [token for work in works for token in work.request.token_ids[work.start : work.end]]
    positions = [i for work in works for i in range(work.start, work.end)]
    metadata = AttentionMetadata.of(works, runner.cache.layout.block_size)
    return runner.model.logits(
        runner.model.hidden_states(torch.tensor(token_ids), torch.tensor(positions), runner.cache.tensor, metadata)
    )
