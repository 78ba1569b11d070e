"""A worker's part in the KV plane, in both roles: what it offers to peers and how it reads from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from cluster.observe_service import Record
from cluster.spec import WorkerSpec
from decode_worker.peers import PeerDirectory
from engine.engine import Engine
from engine.engine_thread import EngineThread
from kv_transfer.lease import LeaseTable
from kv_transfer.local_peer import LocalPeer
from kv_transfer.messages import Compatibility, PeerInfo, TransportInfo
from kv_transfer.metrics import TransferGauges, TransferMetrics
from kv_transfer.nixl import NixlTransport
from kv_transfer.staging import StagingRing
from kv_transfer.transport import Transport
from prefill_worker.peer_service import PeerService
from rpc.worker_pb2 import PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class KVPlane:
    """Built once for an incarnation; the worker that holds it ends its parts, after the engine."""

    transport: Transport
    leases: LeaseTable
    peers: PeerDirectory
    peer_service: PeerService
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
    ) -> KVPlane:
        """Takes a moment: NIXL starts. `on_failed` is called, from any thread, when this incarnation cannot go on.

        `record` is told of each hand-off and each lease that ended.
        """
        config, cache = spec.kv_transfer, engine.engine.cache
        ring = StagingRing(config, cache.block_bytes, spec.engine.device, on_exhausted=on_failed)
        transport = NixlTransport(spec.incarnation, cache, ring, config.ucx_tls, config.ucx_net_devices, on_failed)
        leases = LeaseTable(engine.engine, config, on_awake=transport.keep_awake, on_ended=record)
        offer = TransportInfo(transport.name, transport.metadata())
        me = PeerInfo(spec.incarnation, compatibility(engine.engine), (offer,))
        metrics = TransferMetrics(registry, labels)
        registry.register(TransferGauges(leases, ring, labels))
        peers = PeerDirectory(me, engine, transport, ring, config, metrics, on_ended=record)
        peer_service = PeerService(LocalPeer(me, leases, engine), cache.layout, transport.name, metrics)
        return cls(transport, leases, peers, peer_service, metrics)


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
