"""What a worker that has started consists of, and the order in which it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

import grpc

from cluster.kv_plane import KVPlane
from cluster.observe_service import Record
from cluster.request_stream import LoadReporter
from decode_worker.service import DecodeService
from engine.engine_thread import EngineThread
from engine.record_log import RecordLog
from prefill_worker.service import PrefillService

SERVER_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """Of one incarnation."""

    engine: EngineThread
    kv: KVPlane
    prefill: PrefillService
    decode: DecodeService
    loads: LoadReporter
    records: RecordLog[Record]
    server: grpc.aio.Server
    metrics_server: WSGIServer

    async def stop(self) -> None:
        """The servers, the engine and the transport, in this order; each within its deadline."""
        await self.server.stop(grace=SERVER_GRACE_S)
        await self.kv.pool.close()
        await self.kv.peers.close()
        await asyncio.to_thread(self.engine.stop)
        await asyncio.to_thread(self.kv.close)
        await asyncio.to_thread(self.metrics_server.shutdown)
