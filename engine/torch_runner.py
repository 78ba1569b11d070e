"""Runs batches through the model with torch, and builds such a runner from a model folder.

After `run`, the batch's K and V are in the cache, on a GPU too, and each sampled token is chosen.
"""

from __future__ import annotations

from pathlib import Path

import torch

from engine.attention import AttentionMetadata
from engine.attention_cpu import choose_attention
from engine.batch import Batch
from engine.config import EngineConfig
from engine.grammar import Grammars
from engine.kv_cache import DTYPES, KVCache, KVLayout
from engine.model import Model
from engine.model_config import ModelConfig
from engine.sampled_token import SampledToken, SamplingFailure
from engine.sampler import Sampler
from engine.weights import Checkpoint


class TorchRunner:
    """Maintains the model and the cache that it writes; used by one thread."""

    def __init__(self, model: Model, cache: KVCache, sampler: Sampler) -> None:
        self.model = model
        self.cache = cache
        self._sampler = sampler

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[SampledToken | SamplingFailure]:
        device = self.model.device
        metadata = AttentionMetadata.of(batch.works, self.cache.layout.block_size, device)
        token_ids = [token for work in batch.works for token in work.request.token_ids[work.start : work.end]]
        positions = [i for work in batch.works for i in range(work.start, work.end)]
        hidden = self.model.hidden_states(
            torch.tensor(token_ids, device=device),
            torch.tensor(positions, device=device),
            self.cache.tensor,
            metadata,
            batch.watch,
        )
        ends = metadata.query_starts[1:]
        rows = [end - 1 for work, end in zip(batch.works, ends, strict=True) if work.sample]
        if not rows:
            if hidden.is_cuda:
                torch.cuda.synchronize(hidden.device)
            return []
        return self._sampler.sample(self.model.logits(hidden[rows]), [work.request for work in batch.sampled])


def load_torch_runner(
    folder: Path,
    config: EngineConfig,
    grammars: Grammars | None = None,
    native_dir: Path | None = None,
    loaded: Model | None = None,
) -> TorchRunner:
    """The model in `folder` with an empty cache of `config.num_blocks`. Raises `UnsupportedModelError`.

    `grammars`: those of the engine whose requests it will sample. `native_dir` keeps compiled kernels; by default a
    directory in the user's cache. `loaded`: of the same folder, and no longer in use; read again if it does not fit.
    """
    torch.set_num_threads(config.threads)
    model_config = ModelConfig.from_folder(folder)
    layout = kv_layout(model_config, config)
    native_dir = native_dir or Path.home() / ".cache" / "pdserve" / "native"
    attention = choose_attention(layout, model_config.num_heads, config.device, config.threads, native_dir)
    dtype = DTYPES[layout.dtype]
    if loaded is not None and (loaded.device, loaded.embedding.dtype) == (config.device, dtype):
        model = loaded.with_attention(attention)
    else:
        model = Model(model_config, Checkpoint(folder, config.device, dtype), attention)
    cache = KVCache(layout, config.num_blocks, config.device)
    return TorchRunner(model, cache, Sampler(grammars or Grammars(None)))


def kv_layout(model_config: ModelConfig, config: EngineConfig) -> KVLayout:
    return KVLayout(
        num_layers=model_config.num_layers,
        num_kv_heads=model_config.num_kv_heads,
        block_size=config.block_size,
        head_dim=model_config.head_dim,
        dtype=resolve_dtype(config),
    )


def resolve_dtype(config: EngineConfig) -> str:
    """`auto` is float32 on a CPU and bfloat16 on a GPU."""
    if config.dtype != "auto":
        return config.dtype
    return "float32" if config.device == "cpu" else "bfloat16"
