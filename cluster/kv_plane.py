"""A worker's part in the KV plane, in both roles: what it offers to peers and how it reads from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry

from cluster.grpc_pool import GrpcPoolNode
from cluster.observe_service import Record
from cluster.offer_service import OfferService
from cluster.worker_spec import WorkerSpec
from decode_worker.grpc_peer import GrpcPeer
from decode_worker.peers import PeerDirectory
from engine.engine import Engine
from engine.engine_thread import EngineThread
from kv_transfer.awake import AwakeVotes
from kv_transfer.block_offer import BlockOffers
from kv_transfer.lease import LeaseTable
from kv_transfer.local_offers import LocalOffers
from kv_transfer.local_peer import LocalPeer
from kv_transfer.messages import Compatibility, PeerInfo, TransportInfo
from kv_transfer.metrics import TransferGauges, TransferMetrics
from kv_transfer.pool_client import PoolClient
from kv_transfer.pool_nodes import PoolNodes
from kv_transfer.pool_reader import PoolReader
from kv_transfer.pool_writer import PoolWriter
from kv_transfer.staging import StagingRing
from kv_transfer.transport import Transport
from kv_transfer.transports import build_transports
from kv_transfer.two_sided import TwoSidedTransport
from prefill_worker.peer_service import PeerService
from rpc.worker_pb2 import PROTOCOL_VERSION
from security.channel_tls import ChannelTls


@dataclass(frozen=True, slots=True)
class KVPlane:
    """Built once for an incarnation; the worker that holds it ends its parts, after the engine."""

    transports: Mapping[str, Transport]  # by name, the preferred one first
    leases: LeaseTable
    peers: PeerDirectory
    peer_service: PeerService
    pool: PoolClient
    offer_service: OfferService
    metrics: TransferMetrics

    @classmethod
    def build(
        cls,
        spec: WorkerSpec,
        engine: EngineThread,
        registry: CollectorRegistry,
        labels: Mapping[str, str],
        on_failed: Callable[[str], None],
        record: Callable[[Record], None],
        tls: ChannelTls | None = None,
    ) -> KVPlane:
        """Takes a moment: NIXL starts. `on_failed` is called, from any thread, when this incarnation cannot go on.

        `record` is told of each hand-off and each lease that ended. Raises ValueError for a transport that cannot move
        this device's memory.
        """
        config, cache = spec.kv_transfer, engine.engine.cache
        ring = StagingRing(config, cache.block_bytes, spec.engine.device, on_exhausted=on_failed)
        transports = build_transports(spec.incarnation, cache, ring, config, spec.host, on_failed)

        def keep_awake(awake: bool) -> None:
            for transport in transports.values():
                transport.keep_awake(awake)

        awake = AwakeVotes(keep_awake)
        leases = LeaseTable(engine.engine, config, on_awake=awake.voter(), on_ended=record)
        infos = tuple(TransportInfo(name, transport.metadata()) for name, transport in transports.items())
        me = PeerInfo(spec.incarnation, compatibility(engine.engine), infos)
        metrics = TransferMetrics(registry, labels)
        registry.register(TransferGauges(leases, ring, labels))
        open_peer = partial(GrpcPeer, tls=tls)
        peers = PeerDirectory(me, engine, transports, ring, config, metrics, record, open_peer)
        two_sided = {name: sender for name, sender in transports.items() if isinstance(sender, TwoSidedTransport)}
        peer = LocalPeer(me, leases, engine, two_sided=two_sided)
        peer_service = PeerService(peer, cache.layout, metrics)
        offers = BlockOffers(engine.engine.pool, config.lease_s, awake.voter())
        nodes = PoolNodes(me, lambda node: GrpcPoolNode(node.address, tls), transports, config, metrics.pool_failed)
        reader = PoolReader(nodes, engine, ring, config)
        pool = PoolClient(nodes, reader, PoolWriter(nodes, engine, offers, spec.incarnation, config))
        offer_service = OfferService(LocalOffers(offers, engine))
        return cls(transports, leases, peers, peer_service, pool, offer_service, metrics)

    def close(self) -> None:
        """Ends the transports, each within its deadline."""
        for transport in self.transports.values():
            transport.close()


def compatibility(engine: Engine) -> Compatibility:
    """What a peer must have in common with this engine."""
    layout = engine.cache.layout
    return Compatibility(
        protocol_version=PROTOCOL_VERSION,
        model_fingerprint=engine.model.fingerprint,
        kv_dtype=layout.dtype,
        block_size=layout.block_size,
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
        tensor_parallel_size=engine.config.tensor_parallel_size,
    )
