"""Workers of one machine choose their ports while others start, and others have taken some: all of them come up."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.fake_model import write_fake_model
from tests.integration.processes import Processes

pytestmark = pytest.mark.integration

NUM_CLUSTERS = 2  # of two prefill and two decode workers, started at once
NUM_TAKEN = 200


def test_workers_that_start_at_once_all_come_up_each_on_ports_of_its_own(tmp_path: Path) -> None:
    """Field report D41."""
    model = write_fake_model(tmp_path / "model")
    with ExitStack() as held, ThreadPoolExecutor(NUM_CLUSTERS) as threads:
        taken = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(NUM_TAKEN)]
        clusters = [held.enter_context(Processes(model, tmp_path)) for _ in range(NUM_CLUSTERS)]
        for started in [threads.submit(cluster.start_workers, prefill=2, decode=2) for cluster in clusters]:
            started.result(60)
        workers = [worker for cluster in clusters for worker in cluster.workers]
        ports = [worker.port for worker in workers]
        ports += [int(worker.addresses["metrics"].rpartition(":")[2]) for worker in workers]
        assert len(set(ports)) == 2 * len(workers) == 8 * NUM_CLUSTERS
        assert not set(ports) & {each.getsockname()[1] for each in taken}
        assert all(worker.is_idle for worker in workers)
