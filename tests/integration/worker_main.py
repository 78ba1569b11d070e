"""One worker or pool node as a plain process, for tests: its spec as JSON in, its addresses as JSON out, until its end.

It runs in a process of its own: `ForkedProcess(run, …)`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import threading
from dataclasses import asdict

from cluster.pool_node_spec import PoolNodeSpec
from cluster.pool_process import PoolNodeProcess
from cluster.worker import Worker
from cluster.worker_spec import WorkerSpec
from engine.engine_thread import EngineThread
from tests.integration.fork_server import Say


def run(spec: str, say: Say) -> None:
    asyncio.run(_serve(spec, say))


async def _serve(spec: str, say: Say) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    worker = make_process(spec)
    addresses = await worker.start()
    say(json.dumps({**asdict(addresses), "incarnation": worker.spec.incarnation}))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    if isinstance(worker, Worker):
        _hang_when_told(worker.engine)
    await stopped.wait()
    await worker.stop()


def _hang_when_told(engine: EngineThread) -> None:
    """SIGUSR1 hangs the engine's thread, and nothing else, until SIGUSR2."""
    released = threading.Event()

    def hang() -> None:
        released.clear()
        engine.tell(lambda _: released.wait())

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, hang)
    loop.add_signal_handler(signal.SIGUSR2, released.set)


def make_process(spec: str) -> Worker | PoolNodeProcess:
    if json.loads(spec)["role"] == "pool":
        return PoolNodeProcess(PoolNodeSpec.model_validate_json(spec))
    return Worker(WorkerSpec.model_validate_json(spec))
