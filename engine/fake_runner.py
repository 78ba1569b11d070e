"""A runner without a model, for tests: the next token is a function of what the KV cache says.

It writes each token into the cache and reads the whole history back, so wrong or missing KV gives wrong tokens.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from engine.batch import Batch, Work
from engine.config import EngineConfig
from engine.engine import ModelInfo
from engine.kv_cache import KVCache, KVLayout
from engine.request import SamplingParams

MODEL_TYPE = "pdserve_fake"
VOCAB_SIZE = 257  # bytes, and one end-of-text id
EOS_TOKEN_ID = 256
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass(frozen=True, slots=True)
class FakeModel:
    """The shape and pace of the fake. `seconds_per_step` and `seconds_per_token` are slept in each step."""

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
    """Maintains nothing of its own: all state is in the cache."""

    def __init__(self, cache: KVCache, model: FakeModel | None = None) -> None:
        self.cache = cache
        self.model = model or FakeModel()

    def run(self, batch: Batch) -> list[int]:
        time.sleep(self.model.seconds_per_step + self.model.seconds_per_token * batch.num_tokens)
        for work in batch.works:
            self._write(work)
        return [self._sample(work) for work in batch.sampled]

    @staticmethod
    def expected(prompt: Sequence[int], n: int, sampling: SamplingParams | None = None) -> list[int]:
        """The n tokens that follow `prompt` when every KV entry is right."""
        tokens = list(prompt)
        for _ in range(n):
            tokens.append(next_token([float(t) for t in tokens], sampling))
        return tokens[len(prompt) :]

    def _write(self, work: Work) -> None:
        for position in range(work.start, work.end):
            block, slot = divmod(position, self.cache.layout.block_size)
            self._slot(work.blocks[block], slot).copy_(self._entry(work.request.token_ids[position]))

    def _sample(self, work: Work) -> int:
        values = []
        for position in range(work.end):
            block, slot = divmod(position, self.cache.layout.block_size)
            entry = self._slot(work.blocks[block], slot)
            token = float(entry[0, 0, 0, 0])
            values.append(token if torch.equal(entry, self._entry(token)) else -1.0)
        return next_token(values, work.request.sampling)

    def _slot(self, block: int, slot: int) -> Tensor:
        return self.cache.tensor[block, :, :, :, slot]  # [layer, 2, kv_head, head_dim]

    def _entry(self, token: float) -> Tensor:
        """What the cache holds for one token: every element differs, so that a shuffled copy is seen."""
        shape = (self.model.num_layers, 2, self.model.num_kv_heads, self.model.head_dim)
        size = self.cache.tensor[0, :, :, :, 0].numel()
        return token + 1000.0 * torch.arange(size, dtype=torch.float32).view(shape)


def next_token(history: Sequence[float], sampling: SamplingParams | None = None) -> int:
    """A lower-case letter that depends on every value of the history, and on the seed unless greedy."""
    seed = sampling.seed if sampling is not None and sampling.temperature > 0 else None
    digest = hashlib.blake2b(repr((list(history), seed)).encode(), digest_size=8).digest()
    return ord("a") + int.from_bytes(digest, "big") % 26


def write_fake_model(folder: Path, model: FakeModel | None = None) -> Path:
    """A model folder that `engine.build` serves with the fake runner, and a byte-level tokenizer.json beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = model or FakeModel()
    sizes = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": model.max_model_len, "eos_token_id": EOS_TOKEN_ID}
    (folder / "config.json").write_text(json.dumps({"model_type": MODEL_TYPE, **sizes, "fake": asdict(model)}))
    alphabet = bytes_to_unicode()
    vocab = {alphabet[byte]: byte for byte in range(256)} | {"<|end|>": EOS_TOKEN_ID}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE, "eos_token": "<|end|>"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_TOKEN_ID}))
    return folder


def load_fake_runner(folder: Path, config: EngineConfig) -> tuple[FakeRunner, ModelInfo]:
    model = FakeModel(**json.loads((folder / "config.json").read_text())["fake"])
    cache = KVCache(model.layout(config.block_size), config.num_blocks)
    return FakeRunner(cache, model), model.info()


def bytes_to_unicode() -> dict[int, str]:
    """GPT-2's byte alphabet: each byte as one printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
