"""One worker process: an engine, its role, its transport, and the servers through which proxies and peers reach it.

No Ray here: `WorkerActor` wraps it, and tests run it as a plain process.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import grpc
from prometheus_client import CollectorRegistry, start_http_server

from cluster.address import join_host_port
from cluster.request_stream import Identity, LoadReporter, StreamServer
from cluster.spec import WorkerSpec
from cluster.token_request import RequestBuilder
from cluster.worker_metrics import EngineMetrics
from decode_worker.peers import PeerDirectory
from decode_worker.service import DecodeService
from engine.build import build_engine
from engine.engine import Engine, StepResult
from engine.engine_thread import EngineThread
from kv_transfer.lease import LeaseTable
from kv_transfer.local_peer import LocalPeer
from kv_transfer.messages import Compatibility, PeerInfo, TransportInfo
from kv_transfer.metrics import TransferGauges, TransferMetrics
from kv_transfer.nixl import NixlTransport
from kv_transfer.staging import StagingRing
from kv_transfer.transport import Transport
from prefill_worker.peer_service import PeerService
from prefill_worker.service import PrefillService
from rpc import peer_pb2_grpc, worker_pb2, worker_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION

logger = logging.getLogger(__name__)

ROLES = {"prefill": worker_pb2.ROLE_PREFILL, "decode": worker_pb2.ROLE_DECODE, "mixed": worker_pb2.ROLE_MIXED}
SERVER_OPTIONS = [
    ("grpc.keepalive_time_ms", 5_000),  # a peer that went away without a word is noticed
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
]


@dataclass(frozen=True, slots=True)
class WorkerAddresses:
    """Where a started worker is reached, and by which transports its KV."""

    grpc: str  # host:port
    metrics: str  # host:port
    incarnation: str
    transports: tuple[str, ...]


class Worker:
    """Maintains one engine and one role. Everything of an incarnation is built in `start` and gone after `stop`."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.role_epoch = 1
        self._admitting = False
        self._started_at = monotonic()

    async def start(self) -> WorkerAddresses:
        """Loads the model and opens the ports. Raises what `build_engine` does, and OSError for a port."""
        spec = self.spec
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        engine = await asyncio.to_thread(build_engine, Path(spec.model_dir), spec.engine)
        self.engine = EngineThread(engine)
        labels = {"model_name": spec.model_name, "role": spec.role, "worker": spec.name}
        registry = CollectorRegistry()
        staging = StagingRing(spec.kv_transfer, engine.cache.block_bytes, spec.engine.device, on_exhausted=self._fail)
        self.transport: Transport = NixlTransport(
            spec.incarnation, engine.cache, staging, ucx_tls=spec.kv_transfer.ucx_tls
        )
        self.leases = LeaseTable(engine, spec.kv_transfer, on_awake=self.transport.keep_awake)
        me = PeerInfo(
            spec.incarnation,
            _compatibility(engine),
            (TransportInfo(self.transport.name, self.transport.metadata()),),
        )
        metrics = TransferMetrics(registry, labels)
        registry.register(TransferGauges(self.leases, staging, labels))
        self.peers = PeerDirectory(me, self.engine, self.transport, staging, spec.kv_transfer, metrics)
        make_request = RequestBuilder()
        local_peer = LocalPeer(me, self.leases, self.engine)
        self.prefill = PrefillService(self.engine, self.leases, make_request, self._refusal_of_prefill)
        self.decode = DecodeService(
            self.engine, self.peers, spec.kv_transfer, make_request, self._refusal_of_decode, metrics
        )
        self._observe_steps(EngineMetrics(registry, labels, self.engine))
        self.engine.start()
        self._admitting = True
        peer_service = PeerService(local_peer, engine.cache.layout, self.transport.name, metrics)
        grpc_port = await self._serve(peer_service)
        self._metrics_server, _ = start_http_server(0, addr=spec.host, registry=registry)
        logger.info(
            "worker %s (%s) serves as %s on %s:%d", spec.name, spec.incarnation, spec.role, spec.host, grpc_port
        )
        return WorkerAddresses(
            grpc=join_host_port(spec.host, grpc_port),
            metrics=join_host_port(spec.host, self._metrics_server.server_port),
            incarnation=spec.incarnation,
            transports=(self.transport.name,),
        )

    def load(self) -> worker_pb2.Load:
        load = self.engine.load
        return worker_pb2.Load(
            num_running=load.num_open - load.num_waiting,
            num_waiting=load.num_waiting,
            num_queued_tokens=load.num_uncomputed_tokens,
            num_blocks=self.engine.engine.pool.num_blocks,
            num_free_blocks=load.blocks.free + load.blocks.cached,
            admitting=self._admitting,
        )

    @property
    def uptime_s(self) -> float:
        return monotonic() - self._started_at

    async def drain(self, timeout_s: float) -> int:
        """Admits no more, waits for what runs, and aborts the rest; the number aborted."""
        self._admitting = False
        self._loads.notify()
        try:
            async with asyncio.timeout(timeout_s):
                await self.decode.wait_idle()
                await self.prefill.wait_idle()
        except TimeoutError:
            return self.decode.abort_all() + self.prefill.abort_all()
        return 0

    async def wait_failed(self) -> str:
        """Returns when this incarnation cannot go on, with the reason."""
        died = asyncio.wrap_future(self.engine.died)
        done, _ = await asyncio.wait([died, self._failed], return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()

    async def stop(self) -> None:
        """Ends the servers, the engine and the transport, in this order; each within its deadline."""
        self._admitting = False
        await self._server.stop(grace=1.0)
        await self.peers.close()
        await asyncio.to_thread(self.engine.stop)
        await asyncio.to_thread(self.transport.close)
        await asyncio.to_thread(self._metrics_server.shutdown)

    async def _serve(self, peer_service: PeerService) -> int:
        self._loads = LoadReporter(self.load)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        prefill = StreamServer(self.prefill, worker_pb2.PrefillEvent, self._identity, self._loads)
        decode = StreamServer(self.decode, worker_pb2.DecodeEvent, self._identity, self._loads)
        worker_pb2_grpc.add_PrefillServicer_to_server(prefill, self._server)
        worker_pb2_grpc.add_DecodeServicer_to_server(decode, self._server)
        peer_pb2_grpc.add_PeerServicer_to_server(peer_service, self._server)
        port = self._server.add_insecure_port(join_host_port(self.spec.host, 0))
        await self._server.start()
        return port

    def _observe_steps(self, metrics: EngineMetrics) -> None:
        loop = asyncio.get_running_loop()

        def on_step(result: StepResult) -> None:
            metrics.observe(result)
            if result.num_tokens:
                loop.call_soon_threadsafe(self._loads.notify)

        self.engine.subscribe(on_step)

    def _identity(self) -> Identity:
        return Identity(self.spec.incarnation, ROLES[self.spec.role], self.role_epoch)

    def _refusal_of_prefill(self, role_epoch: int) -> worker_pb2.FailureCode | None:
        return self._refusal(role_epoch, self.spec.role == "prefill")

    def _refusal_of_decode(self, role_epoch: int) -> worker_pb2.FailureCode | None:
        return self._refusal(role_epoch, self.spec.role != "prefill")

    def _refusal(self, role_epoch: int, has_role: bool) -> worker_pb2.FailureCode | None:
        if not has_role or role_epoch != self.role_epoch:
            return worker_pb2.FAILURE_ROLE_CHANGED
        return None if self._admitting else worker_pb2.FAILURE_DRAINING

    def _fail(self, reason: str) -> None:
        self._admitting = False
        if not self._failed.done():
            self._failed.set_result(reason)


def _compatibility(engine: Engine) -> Compatibility:
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
