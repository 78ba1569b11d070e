"""The engine on a CUDA device computes what it computes on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.build import build_engine
from engine.request import Request, SamplingParams
from tests.engine_config import engine_config
from tests.unit.engine_model.tiny_models import TINY_MODELS, VOCAB_SIZE, save_tiny


def generate(folder: Path, device: str) -> list[list[int]]:
    """Four requests of different lengths side by side, in chunks of 8, 12 greedy tokens each."""
    config = engine_config(device=device, dtype="float32", block_size=4, num_blocks=64, prefill_chunk_size=8)
    engine = build_engine(folder, config)
    requests = [
        Request(f"r{n}", [(n * 7 + i) % VOCAB_SIZE for i in range(n)], n, SamplingParams(max_tokens=12))
        for n in (1, 5, 16, 30)
    ]
    for request in requests:
        engine.add(request)
    while engine.step().num_tokens:
        engine.check_integrity()
    return [request.token_ids for request in requests]


@pytest.mark.parametrize("name", TINY_MODELS)
def test_greedy_tokens_on_cuda_are_those_on_cpu(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path)
    assert generate(tmp_path, "cuda") == generate(tmp_path, "cpu")
