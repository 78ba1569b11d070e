"""A worker generates once before it is ready, and is as before afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.fake_model import write_fake_model
from cluster.warm_up import WarmUpError, warm_up
from engine.batch import Batch
from engine.build import build_engine, model_of
from engine.config import EngineConfig
from engine.engine import Engine
from engine.sampled_token import SampledToken
from tests.unit.engine_model.tiny_models import save_tiny


def engine_of(folder: Path, **fields: object) -> Engine:
    return build_engine(write_fake_model(folder), EngineConfig.model_validate({"num_blocks": 8} | fields))


@pytest.mark.parametrize("block_size", [1, 2, 16])
def test_the_engine_is_idle_and_empty_afterwards(tmp_path: Path, block_size: int) -> None:
    engine = engine_of(tmp_path, block_size=block_size)
    warm_up(engine)
    assert not engine.requests
    load = engine.load()
    assert (load.num_open, load.blocks.used, load.blocks.leased) == (0, 0, 0)
    engine.check_integrity()


def test_a_device_that_cannot_compute_is_seen_before_the_worker_is_ready(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)

    class Broken:
        def run(self, batch: Batch) -> list[SampledToken]:
            raise RuntimeError("no such kernel")

    engine.runner = Broken()
    with pytest.raises(WarmUpError, match="no such kernel"):
        warm_up(engine)


def test_weights_are_kept_from_one_engine_to_the_next_and_read_again_for_another_dtype(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    first = build_engine(tmp_path, EngineConfig(num_blocks=8))
    loaded = model_of(first)
    assert loaded is not None
    next_engine = build_engine(tmp_path, EngineConfig(num_blocks=16, threads=2), loaded)
    kept = model_of(next_engine)
    assert kept is not None
    assert kept.embedding is loaded.embedding
    assert next_engine.cache.num_blocks == 16
    other = model_of(build_engine(tmp_path, EngineConfig(num_blocks=8, dtype="bfloat16"), loaded))
    assert other is not None
    assert other.embedding is not loaded.embedding
