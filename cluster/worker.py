"""One worker process: an engine, its role, its part in the KV plane, and the servers through which others reach it.

No Ray here: `WorkerActor` wraps it, and tests run it as a plain process.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import grpc
from prometheus_client import CollectorRegistry, start_http_server

from cluster.admission import Admission
from cluster.cache_reporter import CacheReporter, follow_cache
from cluster.engine_watch import EngineWatch
from cluster.kv_plane import KVPlane
from cluster.membership import Addresses
from cluster.observe_service import ObserveService, Record
from cluster.request_stream import Identity, LoadReporter, StreamServer
from cluster.server_options import SERVER_OPTIONS
from cluster.step_totals import StepTotals
from cluster.token_request import RequestBuilder
from cluster.warm_up import warm_up
from cluster.worker_metrics import EngineMetrics
from cluster.worker_parts import WorkerParts
from cluster.worker_spec import WorkerSpec
from decode_worker.service import DecodeService
from engine.build import build_engine, model_of
from engine.engine import StepResult
from engine.engine_thread import EngineThread
from engine.model import Model
from engine.record_log import RecordLog
from engine.step_record import step_record
from kv_transfer.peer_address import PeerAddress
from prefill_worker.service import PrefillService
from rpc import observe_pb2_grpc, peer_pb2_grpc, pool_pb2_grpc, worker_pb2, worker_pb2_grpc
from security.address import join_host_port
from security.cluster_tls import ClusterTls
from security.connection import listen
from telemetry.tracer import Tracer, open_tracer

logger = logging.getLogger(__name__)


class Worker:
    """Maintains one engine and one role, from `start` to `stop`; another start is another incarnation."""

    def __init__(self, spec: WorkerSpec, loaded: Model | None = None) -> None:
        """`loaded`: the model that an earlier worker of this process left."""
        self.spec = spec
        self._loaded = loaded
        self._admission = Admission(spec)
        self._started_at = monotonic()
        self._parts: WorkerParts | None = None
        self._tracer: Tracer | None = None
        self._totals = StepTotals()
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> Addresses:
        """Loads the model, generates once, and opens the ports.

        Raises what `build_engine` does, OSError for a port, and WarmUpError.
        """
        spec = self.spec
        loop = asyncio.get_running_loop()
        built = await asyncio.to_thread(build_engine, Path(spec.model_dir), spec.engine, self._loaded)
        self._loaded = None
        await asyncio.to_thread(warm_up, built)
        engine = EngineThread(built)
        engine.died.add_done_callback(lambda died: loop.call_soon_threadsafe(self._die, died.result()))
        labels = {"model_name": spec.model_name, "role": spec.role, "worker": spec.name}
        registry = CollectorRegistry()

        def fail(reason: str) -> None:
            loop.call_soon_threadsafe(self._fail, reason)

        records = RecordLog[Record](spec.engine.trace_steps)
        tls = ClusterTls.read(spec.tls)
        kv = await asyncio.to_thread(KVPlane.build, spec, engine, registry, labels, fail, records.append, tls.channel)
        make_request, admits = RequestBuilder(), self._admission
        tracer = self._tracer = open_tracer(spec.tracing, "pdserve-worker", spec.name)
        prefill = PrefillService(
            engine, kv.leases, make_request, admits.refusal_of_prefill, kv.pool, kv.metrics, tracer
        )
        decode = DecodeService(
            engine, kv.peers, spec.kv_transfer, make_request, admits.refusal_of_decode, kv.metrics, kv.pool, tracer
        )
        loads = LoadReporter(self.load)
        server = grpc.aio.server(options=SERVER_OPTIONS)
        port = listen(server, join_host_port(spec.host, 0), tls.server)
        kv.pool.writer.serve_at(join_host_port(spec.host, port))
        metrics_server, _ = start_http_server(0, addr=spec.host, registry=registry)
        self._parts = WorkerParts(engine, kv, prefill, decode, loads, records, server, metrics_server)
        self._observe_steps(EngineMetrics(registry, labels, engine))
        self._mount()
        engine.start()
        await server.start()
        self._watching = asyncio.create_task(self._watch_engine(engine), name="engine watch")
        self._admission.is_open = not self._failed.done()
        logger.info("worker %s (%s) serves as %s on port %d", spec.name, spec.incarnation, spec.role, port)
        metrics = join_host_port(spec.host, metrics_server.server_port)
        return Addresses(join_host_port(spec.host, port), metrics, socket.gethostname(), tuple(kv.transports))

    def load(self) -> worker_pb2.Load:
        load = self.engine.load
        report = worker_pb2.Load(
            num_running=load.num_open - load.num_waiting,
            num_waiting=load.num_waiting,
            num_queued_tokens=load.num_uncomputed_tokens,
            num_blocks=self.engine.engine.pool.num_blocks,
            num_free_blocks=load.blocks.free + load.blocks.cached,
            admitting=self._admission.admits,
            stuck=self._admission.is_stuck,
        )
        self._totals.tell(report)
        return report

    @property
    def engine(self) -> EngineThread:
        return self._started.engine

    @property
    def uptime_s(self) -> float:
        return monotonic() - self._started_at

    async def drain(self, timeout_s: float) -> int:
        """Admits no more, waits for what runs, and hands the rest back to the proxies; how many those were."""
        self._close_admission()
        try:
            async with asyncio.timeout(timeout_s):
                await self._started.decode.wait_idle()
                await self._started.prefill.wait_idle()
                await self._started.kv.pool.writer.settle()  # what it computed outlives it
        except TimeoutError:
            return self._give_up_all(f"the worker leaves, and the request did not end within {timeout_s:g} s")
        return 0

    async def meet(self, peers: Sequence[PeerAddress]) -> None:
        """Connects to prefill workers, so that the first hand-off need not; who cannot be reached is left for then."""
        await self._started.kv.peers.meet(peers)

    @property
    def model(self) -> Model | None:
        """The weights, for another worker of this process once this one has stopped."""
        return None if self._parts is None else model_of(self._parts.engine.engine)

    async def wait_failed(self) -> str:
        """Returns when this incarnation cannot go on, with the reason."""
        return await asyncio.shield(self._failed)

    async def stop(self) -> None:
        """Admits no more and ends, each part within its deadline."""
        if self._parts is None:
            return
        self._close_admission()
        if self._watching is not None:
            self._watching.cancel()
        await self._parts.stop()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    @property
    def _started(self) -> WorkerParts:
        if self._parts is None:
            raise RuntimeError(f"worker {self.spec.name} is not started")
        return self._parts

    def _mount(self) -> None:
        parts, caches = self._started, CacheReporter()
        follow_cache(parts.engine, caches.append)
        prefill = StreamServer(parts.prefill, worker_pb2.PrefillEvent, self._identity, parts.loads, caches)
        decode = StreamServer(parts.decode, worker_pb2.DecodeEvent, self._identity, parts.loads, caches)
        worker_pb2_grpc.add_PrefillServicer_to_server(prefill, parts.server)
        worker_pb2_grpc.add_DecodeServicer_to_server(decode, parts.server)
        peer_pb2_grpc.add_PeerServicer_to_server(parts.kv.peer_service, parts.server)
        pool_pb2_grpc.add_BlockOffersServicer_to_server(parts.kv.offer_service, parts.server)
        observe_pb2_grpc.add_ObserveServicer_to_server(ObserveService(self.spec, parts.records), parts.server)

    def _observe_steps(self, metrics: EngineMetrics) -> None:
        loop, parts = asyncio.get_running_loop(), self._started

        def on_step(result: StepResult) -> None:
            metrics.observe(result)
            self._totals.observe(result)
            if parts.records.capacity:
                record = step_record(result, parts.engine.load, monotonic())
                if record is not None:
                    parts.records.append(record)
            if result.num_tokens:
                loop.call_soon_threadsafe(parts.loads.notify)

        parts.engine.subscribe(on_step)

    async def _watch_engine(self, engine: EngineThread) -> None:
        def change() -> None:
            self._admission.is_stuck = watch.is_stuck
            self._started.loads.notify()
            if watch.is_stuck:
                num_moved = self._give_up_all("the engine does not turn")
                logger.error("worker %s: the engine does not turn; %d requests move", self.spec.name, num_moved)
            else:
                logger.info("worker %s: the engine turns again", self.spec.name)

        watch = EngineWatch(engine, self.spec.stuck, change, self._fail)
        await watch.run()

    def _identity(self) -> Identity:
        engine = self._started.engine.engine
        return self._admission.identity(min(engine.model.max_model_len, engine.capacity), engine.hash_context)

    def _close_admission(self) -> None:
        self._admission.is_open = False
        self._started.loads.notify()

    def _give_up_all(self, reason: str) -> int:
        return self._started.decode.give_up_all(reason) + self._started.prefill.give_up_all(reason)

    def _fail(self, reason: str) -> None:
        """This incarnation takes no more; what runs may finish, until the controller has drained and replaced it."""
        if not self._failed.done():
            logger.error("worker %s cannot go on: %s", self.spec.name, reason)
            self._failed.set_result(reason)
        if self._parts is not None:
            self._close_admission()

    def _die(self, reason: str) -> None:
        """The engine has ended: nothing here can finish, so proxies take it elsewhere at once."""
        self._fail(reason)
        if self._parts is not None:
            self._give_up_all(reason)
