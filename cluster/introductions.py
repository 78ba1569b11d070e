"""Who takes KV from whom connects before the newcomer gets requests, so that no first hand-off waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from cluster.launcher import ProcessLost, RunningWorker
from kv_transfer.peer_address import PeerAddress

TIMEOUT_S = 10.0
logger = logging.getLogger(__name__)


async def introduce(newcomer: RunningWorker, others: Iterable[RunningWorker]) -> None:
    """Returns within a deadline; who could not connect does so at the first hand-off."""
    pairs = []
    if newcomer.spec.role in ("decode", "mixed"):
        pairs.append((newcomer, _addresses(other for other in others if other.spec.role == "prefill")))
    elif newcomer.spec.role == "prefill":
        own = _addresses([newcomer])
        pairs += [(other, own) for other in others if other.spec.role in ("decode", "mixed")]
    await asyncio.gather(*(_meet(worker, peers) for worker, peers in pairs if peers))


async def _meet(worker: RunningWorker, peers: Sequence[PeerAddress]) -> None:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await worker.meet(peers)
    except (ProcessLost, TimeoutError) as error:
        logger.warning("%s did not meet %d others: %s", worker.spec.name, len(peers), error)


def _addresses(workers: Iterable[RunningWorker]) -> list[PeerAddress]:
    return [
        PeerAddress(worker.spec.incarnation, worker.addresses.grpc)
        for worker in workers
        if worker.addresses is not None
    ]
