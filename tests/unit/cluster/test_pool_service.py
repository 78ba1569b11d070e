"""A pool node and a worker that offers, over gRPC on loopback: the same answers as without it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

import grpc
import pytest
import pytest_asyncio

from cluster.grpc_pool import GrpcPoolNode
from cluster.grpc_source import GrpcOfferingWorker
from cluster.pool_metrics import PoolMetrics
from cluster.pool_service import PoolService
from deploy.dashboards.handoff import HANDOFF
from kv_transfer.messages import BlockRef, FailureReason, HandoffError, PeerInfo, Ticket
from kv_transfer.peer import PeerUnavailable
from rpc import peer_pb2, pool_pb2, pool_pb2_grpc, worker_pb2
from tests.unit.kv_transfer.pool_rig import PoolRig, compatibility, key, reader


class Served:
    """A node behind a server, and its client."""

    def __init__(self, rig: PoolRig, address: str) -> None:
        self.rig = rig
        self.address = address
        self.client = GrpcPoolNode(address)


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    rig = PoolRig()
    server = grpc.aio.server()
    pool_pb2_grpc.add_PoolServicer_to_server(PoolService(rig.node), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    served = Served(rig, f"127.0.0.1:{port}")
    yield served
    await served.client.disconnect()
    await server.stop(0)
    await rig.stop()


async def test_blocks_are_offered_looked_up_and_committed(served: Served) -> None:
    side = served.rig.worker()
    offer = side.offer(1, 2, 3)
    assert await served.client.offer(side.source(offer), offer.keys, offer.refs) == [True, True, True]
    keys = [key(3), key(9), key(1)]
    refs = await served.client.lookup(reader(), keys)
    assert [ref and served.rig.content(ref) for ref in refs] == [3, None, 1]
    three, _, one = refs
    assert three is not None
    assert one is not None
    other = BlockRef(one.block, one.generation + 1)
    assert await served.client.commit(reader(), [key(3), key(1)], [three, other]) == [True, False]
    assert not served.rig.node.store.has_leases


async def test_a_lease_is_dropped_by_close(served: Served) -> None:
    await served.rig.fill(served.rig.worker(), 1)
    await served.client.lookup(reader(), [key(1)])
    assert served.rig.node.store.has_leases
    await served.client.close(reader())
    await served.client.close(reader())
    assert not served.rig.node.store.has_leases


async def test_a_worker_is_introduced_or_refused_by_the_name_of_the_field(served: Served) -> None:
    info = await served.client.handshake(PeerInfo("D", compatibility()), "pool")
    assert info == served.rig.info
    with pytest.raises(HandoffError, match="kv_dtype") as refusal:
        await served.client.handshake(PeerInfo("D", compatibility(kv_dtype="bfloat16")), "pool")
    assert refusal.value.reason is FailureReason.INCOMPATIBLE
    with pytest.raises(PeerUnavailable, match="this is pool, not pool-before"):
        await served.client.handshake(PeerInfo("D", compatibility()), "pool-before")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (pool_pb2.LookupRequest(reader=worker_pb2.Ticket(session=b"short")), "ticket.session has 5 bytes"),
        (pool_pb2.LookupRequest(reader=worker_pb2.Ticket(session=bytes(16)), keys=[b"short"]), "does not have 16"),
    ],
)
async def test_a_wrong_lookup_is_refused(served: Served, request_: pool_pb2.LookupRequest, words: str) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match=words) as refused:
            await pool_pb2_grpc.PoolStub(channel).Lookup(request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_keys_without_their_blocks_are_refused(served: Served) -> None:
    with pytest.raises(PeerUnavailable, match="1 keys come with 0 blocks"):
        await served.client.commit(reader(), [key(1)], [])


async def test_a_node_that_is_gone_is_unavailable(served: Served) -> None:
    gone = GrpcPoolNode("127.0.0.1:1")
    with pytest.raises(PeerUnavailable):
        await gone.lookup(reader(), [key(1)])
    await gone.disconnect()
    with pytest.raises(PeerUnavailable):
        await gone.lookup(reader(), [key(1)])


class OfferingServicer(pool_pb2_grpc.BlockOffersServicer):
    """Calls valid what has an even generation."""

    async def CommitOffer(  # noqa: N802  gRPC's name
        self, request: pool_pb2.CommitOfferRequest, context: object
    ) -> pool_pb2.CommitOfferResponse:
        blocks: Sequence[peer_pb2.BlockRef] = request.blocks
        return pool_pb2.CommitOfferResponse(valid=[ref.generation % 2 == 0 for ref in blocks])


async def test_the_source_judges_block_by_block() -> None:
    server = grpc.aio.server()
    pool_pb2_grpc.add_BlockOffersServicer_to_server(OfferingServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    worker = GrpcOfferingWorker(f"127.0.0.1:{port}")
    refs = [BlockRef(0, 2), BlockRef(1, 3), BlockRef(2, 1 << 40)]
    assert await worker.commit_offer(Ticket(bytes(16), 1), refs) == [True, False, True]
    await server.stop(0)
    with pytest.raises(PeerUnavailable):
        await worker.commit_offer(Ticket(bytes(16), 1), refs)
    await worker.disconnect()


async def test_the_metrics_say_what_the_node_keeps_and_found() -> None:
    rig = PoolRig(num_slots=2)
    side = rig.worker()
    await rig.fill(side, 1, 2)
    await rig.read(1, 9)
    await rig.fill(side, 3)
    metrics = PoolMetrics(rig.node, rig.ring, {"role": "pool", "worker": "pool-0"})
    samples = {
        (sample.name, sample.labels.get("tier") or sample.labels.get("state") or sample.labels.get("direction")): (
            sample.value
        )
        for family in metrics.collect()
        for sample in family.samples
    }
    assert samples["pdserve_pool_bytes", "memory"] == 2 * rig.arena.block_bytes
    assert samples["pdserve_pool_objects", None] == 2
    assert samples["pdserve_pool_hits_total", None] == 1
    assert samples["pdserve_pool_misses_total", None] == 1
    assert samples["pdserve_pool_evictions_total", None] == 1
    assert samples["pdserve_kv_transfer_bytes_total", "in"] == 3 * rig.arena.block_bytes
    assert samples["pdserve_kv_transfer_bytes_total", "out"] == rig.arena.block_bytes
    await rig.stop()


async def test_every_pool_metric_on_the_dashboard_is_one_of_the_node_s() -> None:
    rig = PoolRig()
    samples = [sample for family in PoolMetrics(rig.node, rig.ring, {}).collect() for sample in family.samples]
    asked = set(re.findall(r"pdserve_pool_\w+", " ".join(query.expr for query in HANDOFF.queries)))
    assert asked
    assert asked <= {sample.name for sample in samples}
    await rig.stop()
