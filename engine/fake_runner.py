"""A runner without a model, for tests: the next token is a function of what the KV cache says.

It writes each token into the cache and reads the whole history back, so wrong or missing KV gives wrong tokens.
Penalties, bias, stop tokens and grammars change logits made from that token; of the draw, only the seed counts.
"""

from __future__ import annotations

import hashlib
import json
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from engine.batch import Batch, Work
from engine.config import EngineConfig
from engine.engine import ModelInfo
from engine.grammar import Grammars
from engine.kv_cache import KVCache, KVLayout
from engine.request import Request, SamplingParams
from engine.sampled_token import SampledToken, SamplingFailure
from engine.sampler import Sampler

MODEL_TYPE = "pdserve_fake"
VOCAB_SIZE = 257  # bytes, and one end-of-text id
EOS_TOKEN_ID = 256


@dataclass(frozen=True, slots=True)
class FakeModel:
    """The shape and pace of the fake. `seconds_per_step` and `seconds_per_token` are slept in each step, by layers."""

    num_layers: int = 2
    num_kv_heads: int = 1
    head_dim: int = 4
    max_model_len: int = 4096
    seconds_per_step: float = 0.0
    seconds_per_token: float = 0.0

    def layout(self, block_size: int) -> KVLayout:
        return KVLayout(self.num_layers, self.num_kv_heads, block_size, self.head_dim, "float32")

    def info(self) -> ModelInfo:
        shape = json.dumps([self.num_layers, self.num_kv_heads, self.head_dim])
        fingerprint = f"fake-{hashlib.blake2b(shape.encode(), digest_size=8).hexdigest()}"
        return ModelInfo(fingerprint, self.max_model_len, VOCAB_SIZE, frozenset({EOS_TOKEN_ID}))


class FakeRunner:
    """Maintains nothing of its own: all state is in the cache, or derived from requests."""

    def __init__(self, cache: KVCache, model: FakeModel | None = None, grammars: Grammars | None = None) -> None:
        self.cache = cache
        self.model = model or FakeModel()
        shape = (self.model.num_layers, 2, self.model.num_kv_heads, self.model.head_dim)
        self._offsets = 1000.0 * torch.arange(prod(shape), dtype=torch.float32).view(shape)
        self._sampler = Sampler(grammars or Grammars(None), _take_best)

    def run(self, batch: Batch) -> list[SampledToken | SamplingFailure]:
        pause_s = self.model.seconds_per_step + self.model.seconds_per_token * batch.num_tokens
        start = 0
        for end in batch.watch.ends if batch.watch is not None else (self.model.num_layers,):
            time.sleep(pause_s * (end - start) / self.model.num_layers)
            for work in batch.works:
                self._write(work, start, end)
            if batch.watch is not None:
                batch.watch.tell(end)
            start = end
        works = batch.sampled
        if not works:
            return []
        logits = torch.stack([next_logits(self._read(work).tolist(), work.request.sampling) for work in works])
        return self._sampler.sample(logits, [work.request for work in works])

    @staticmethod
    def expected(prompt: Sequence[int], n: int, sampling: SamplingParams | None = None) -> list[int]:
        """The n tokens that follow `prompt` when every KV entry is right; a grammar is not looked at."""
        sampling = replace(sampling or SamplingParams(n), grammar="")
        request = Request("expected", list(prompt), len(prompt), sampling)
        sampler = Sampler(Grammars(None), _take_best)
        for _ in range(n):
            logits = next_logits(request.token_ids, sampling).unsqueeze(0)
            request.token_ids += [t.token_id for t in sampler.sample(logits, [request]) if isinstance(t, SampledToken)]
        return request.token_ids[len(prompt) :]

    def _write(self, work: Work, first: int, end: int) -> None:
        """Of the layers `[first, end)`."""
        positions = torch.arange(work.start, work.end)
        blocks = torch.tensor(work.blocks)[positions // self.cache.layout.block_size]
        slots = positions % self.cache.layout.block_size
        entries = self._entries(torch.tensor(work.request.token_ids[work.start : work.end], dtype=torch.float32))
        self.cache.tensor[blocks, first:end, :, :, slots] = entries[:, first:end]

    def _read(self, work: Work) -> Tensor:
        """The tokens up to the work's end, as the cache has them; -1 for one that is not as it was written."""
        blocks = torch.tensor(work.blocks[: -(-work.end // self.cache.layout.block_size)])
        entries = self.cache.tensor[blocks].movedim(4, 1).flatten(0, 1)[: work.end]
        tokens = entries[:, 0, 0, 0, 0]
        is_right = (entries == self._entries(tokens)).flatten(1).all(1)
        return torch.where(is_right, tokens, -1.0)

    def _entries(self, tokens: Tensor) -> Tensor:
        """`[token, layer, 2, kv_head, head_dim]`, what the cache holds for tokens: every element of one differs, so
        that a shuffled copy is seen."""
        return tokens.view(-1, 1, 1, 1, 1) + self._offsets


def next_logits(history: Sequence[float], sampling: SamplingParams) -> Tensor:
    """`[VOCAB_SIZE]`. Best is a lower-case letter that depends on every value of the history, and on the seed unless
    greedy; then the letters after it, then all other tokens, also in an order that depends on it."""
    seed = sampling.seed if sampling.temperature > 0 else None
    digest = hashlib.blake2b(array("d", history).tobytes() + repr(seed).encode(), digest_size=8).digest()
    best = ord("a") + int.from_bytes(digest, "big") % 26
    token_ids = torch.arange(VOCAB_SIZE)
    is_letter = (token_ids >= ord("a")) & (token_ids <= ord("z"))
    behind = token_ids - best
    return torch.where(is_letter, 10 - behind % 26 / 4, -1 - behind % VOCAB_SIZE / 64)


def _take_best(logits: Tensor, _params: Sequence[SamplingParams], _positions: Sequence[int]) -> list[int]:
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    return tokens


def load_fake_runner(folder: Path, config: EngineConfig, grammars: Grammars) -> tuple[FakeRunner, ModelInfo]:
    model = FakeModel(**json.loads((folder / "config.json").read_text())["fake"])
    cache = KVCache(model.layout(config.block_size), config.num_blocks)
    return FakeRunner(cache, model, grammars), model.info()
