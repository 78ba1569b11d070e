"""Shared clusters: starting processes costs seconds, so tests that leave one healthy share it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.fake_model import write_fake_model
from deploy.model_store import default_cache_dir, resolve_model
from engine.fake_runner import FakeModel
from tests.integration.processes import Processes


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The default model's folder; made from its package on first use."""
    return resolve_model("smollm2-135m-instruct", default_cache_dir(os.environ))


@pytest.fixture(scope="module")
def fake_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """One prefill worker, one decode worker and a proxy over the fake model, which takes 2 ms a step."""
    folder = write_fake_model(tmp_path_factory.mktemp("model"), FakeModel(seconds_per_step=0.002))
    with Processes(folder, tmp_path_factory.mktemp("logs"), engine={"num_blocks": 256}) as processes:
        processes.start_workers()
        processes.start_proxy()
        yield processes
