"""What P counts when D says that it has read."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kv_transfer.messages import ChunkReady, PrefillDone
from kv_transfer.metrics import TransferMetrics
from prefill_worker.peer_service import PeerService
from rpc import peer_pb2, worker_pb2
from tests.unit.kv_transfer.pair import SESSION, Pair, ticket

NO_CONTEXT: Any = None  # only refusals need it


@pytest.mark.parametrize(("said", "counted"), [("local", "local"), ("made up", "unknown")])
async def test_what_was_read_is_counted_once_however_often_the_answer_is_lost(
    pair: Pair, said: str, counted: str
) -> None:
    registry = CollectorRegistry()
    layout = pair.prefill.engine.cache.layout
    service = PeerService(pair.peer, layout, TransferMetrics(registry, {"worker": "P"}))
    await pair.start_prefill(range(10), ticket())
    refs: dict[int, int] = {}
    async for event in pair.peer.open(ticket(), 0):
        chunk = event.tail if isinstance(event, PrefillDone) else event
        assert isinstance(chunk, ChunkReady)
        refs |= {ref.block: ref.generation for ref in chunk.blocks}
    commit = peer_pb2.CommitRequest(
        ticket=worker_pb2.Ticket(session=SESSION, attempt=1),
        blocks=[peer_pb2.BlockRef(block=block, generation=generation) for block, generation in refs.items()],
        transport=said,
    )
    for _ in range(3):
        assert (await service.Commit(commit, NO_CONTEXT)).valid
    labels = {"worker": "P", "transport": counted, "mode": "p2p", "direction": "out"}
    assert registry.get_sample_value("pdserve_kv_transfer_bytes_total", labels) == 3 * layout.block_bytes
