"""One worker as a plain process, for tests: a WorkerSpec as JSON in, its addresses as JSON out, until it is ended."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from dataclasses import asdict

from cluster.spec import WorkerSpec
from cluster.worker import Worker


async def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    worker = Worker(WorkerSpec.model_validate_json(sys.argv[1]))
    addresses = await worker.start()
    print(json.dumps({**asdict(addresses), "incarnation": worker.spec.incarnation}), flush=True)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
