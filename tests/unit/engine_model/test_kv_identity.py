"""What a pool node knows of a model's KV is what a worker with the model in memory says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.fake_model import write_fake_model
from engine.build import build_engine
from engine.config import EngineConfig
from engine.kv_identity import KVIdentity
from tests.unit.engine_model.tiny_models import save_tiny


@pytest.mark.parametrize("changes", [{}, {"dtype": "bfloat16"}, {"block_size": 8}])
def test_a_node_and_a_worker_of_one_configuration_agree(tmp_path: Path, changes: dict[str, object]) -> None:
    save_tiny("llama", tmp_path)
    config = EngineConfig.model_validate({"num_blocks": 4, **changes})
    engine = build_engine(tmp_path, config)
    assert KVIdentity.of(tmp_path, config) == KVIdentity(engine.cache.layout, engine.model.fingerprint)


def test_so_do_those_of_the_fake_model(tmp_path: Path) -> None:
    config = EngineConfig(num_blocks=4)
    engine = build_engine(write_fake_model(tmp_path), config)
    assert KVIdentity.of(tmp_path, config) == KVIdentity(engine.cache.layout, engine.model.fingerprint)


def test_other_weights_under_the_same_configuration_are_another_model(tmp_path: Path) -> None:
    """Field report D37."""
    folders = tmp_path / "a", tmp_path / "b"
    for folder, name in zip(folders, ("llama", "llama with biases"), strict=True):
        folder.mkdir()
        save_tiny(name, folder)
    one, other = (KVIdentity.of(folder, EngineConfig(num_blocks=4)) for folder in folders)
    assert one.layout == other.layout
    assert one.model_fingerprint != other.model_fingerprint
