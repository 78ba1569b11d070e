"""A pool node that cannot start says why, and which setting to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.fake_model import write_fake_model
from cluster.pool_node_spec import PoolNodeSpec
from cluster.pool_process import PoolNodeProcess
from engine.model_config import UnsupportedModelError


def node(folder: Path, **pool: object) -> PoolNodeProcess:
    spec = {
        "name": "pool-0",
        "incarnation": "i",
        "model_dir": str(folder),
        "model_name": "fake",
        "host": "127.0.0.1",
        "pool": {"ram_bytes": 1 << 20} | pool,
    }
    return PoolNodeProcess(PoolNodeSpec.model_validate(spec))


async def test_memory_below_one_block_is_refused_by_the_setting_s_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"kv_pool\.ram_gib is below the size of one KV block"):
        await node(write_fake_model(tmp_path), ram_bytes=100).start()


async def test_a_disk_tier_without_a_writable_place_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    with pytest.raises(OSError, match="file"):
        await node(write_fake_model(tmp_path), disk_bytes=1 << 20, disk_dir=no_folder).start()


async def test_a_model_that_no_worker_could_load_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnsupportedModelError):
        await node(tmp_path).start()


async def test_one_that_did_not_start_can_be_stopped(tmp_path: Path) -> None:
    await node(tmp_path).stop()
