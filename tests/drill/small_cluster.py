"""Real processes over a fake model, in a folder of their own: what a drill is run on from the command line.

Everything is gone at the end of the `with` block.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.fake_model import write_fake_model
from engine.fake_runner import FakeModel
from tests.integration.processes import Processes


@contextmanager
def small_cluster(model: FakeModel, num_blocks: int) -> Iterator[Processes]:
    """Nothing is started yet. `num_blocks`: of each worker's KV cache."""
    with tempfile.TemporaryDirectory(prefix="pdserve-drill-") as folder:
        logs = Path(folder, "logs")
        logs.mkdir()
        model_dir = write_fake_model(Path(folder, "model"), model)
        with Processes(model_dir, logs, engine={"num_blocks": num_blocks}) as processes:
            yield processes
