"""A prefill and a decode worker in one process: real services, real gRPC between them, fake model, local transport."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from cluster.token_request import RequestBuilder
from decode_worker.grpc_peer import GrpcPeer
from decode_worker.peers import PeerDirectory
from decode_worker.service import DecodeService
from engine.config import EngineConfig
from kv_transfer.config import TransferConfig
from kv_transfer.local import LocalNetwork
from kv_transfer.local_peer import LocalPeer
from kv_transfer.metrics import TransferMetrics
from kv_transfer.pool_client import PoolClient
from kv_transfer.transfer_record import HandoffRecord
from prefill_worker.peer_service import PeerService
from prefill_worker.service import PrefillService
from rpc import peer_pb2_grpc, worker_pb2
from telemetry.tracer import Tracer
from tests.engine_config import engine_config
from tests.unit.workers.pool_ends import PoolEnd, Pools
from tests.unit.workers.side import Side

SHORT = TransferConfig(
    staging_slots=4,
    max_quarantined_slots=3,
    staging_slot_bytes=1024,
    handshake_timeout_s=0.3,
    reserve_timeout_s=0.3,
    open_timeout_s=0.3,
    lease_s=0.6,
    renew_every_s=0.1,
    transfer_timeout_s=0.3,
    verdict_timeout_s=0.3,
    silent_peer_s=0.4,
)

ONE_BLOCK_A_SLOT = TransferConfig(staging_slots=4, max_quarantined_slots=3, staging_slot_bytes=256)

LABELS = {"model_name": "fake", "role": "decode", "worker": "w"}


class FakeStream:
    """A proxy's stream that keeps what it is sent."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self._changed = asyncio.Event()

    def send(self, **event: Any) -> None:
        self.events += event.items()
        self._changed.set()

    async def wait_for(self, found: Callable[[], Any], timeout_s: float = 10.0) -> Any:
        async with asyncio.timeout(timeout_s):
            while not (result := found()):
                self._changed.clear()
                await self._changed.wait()
        return result

    def tokens(self, request_id: str) -> list[worker_pb2.RequestTokens]:
        return [
            tokens
            for name, event in self.events
            if name == "tokens"
            for tokens in event.requests
            if tokens.request_id == request_id
        ]

    def done(self, request_id: str) -> Any:
        """A prompt's last event, None while there is none."""
        return next(
            (event for name, event in self.events if name in ("done", "failed") and event.request_id == request_id),
            None,
        )

    async def finished(self, request_id: str) -> list[int]:
        """All token ids of a request, once it has ended."""
        await self.wait_for(lambda: any(t.finish_reason for t in self.tokens(request_id)))
        return [token for tokens in self.tokens(request_id) for token in tokens.ids]

    async def event(self, name: str) -> Any:
        return await self.wait_for(lambda: next((event for n, event in self.events if n == name), None))


class PrefillEnd:
    """A prefill worker that serves peers on a port of its own, or on a given one."""

    def __init__(self, incarnation: str, side: Side, pool: PoolClient, tracer: Tracer | None = None) -> None:
        self.side = side
        self.pool = pool
        self.stream = FakeStream()
        local_peer = LocalPeer(self.side.info, self.side.leases, self.side.engine)
        metrics = TransferMetrics(self.side.registry, LABELS)
        self.service = PrefillService(
            self.side.engine, self.side.leases, RequestBuilder(), _admits, pool, metrics, tracer
        )
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        layout = self.side.engine.engine.cache.layout
        peer_service = PeerService(local_peer, layout, metrics)
        peer_pb2_grpc.add_PeerServicer_to_server(peer_service, self.server)
        self.port = 0

    async def start(self, port: int = 0) -> None:
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        await self.server.start()
        self.side.engine.start()

    async def stop(self) -> None:
        self.service.give_up_all("the test ends")
        await self.server.stop(0)
        await self.pool.close()
        await asyncio.to_thread(self.side.engine.stop)
        self.side.transport.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class Pair:
    """P and D, and the proxy's streams to both."""

    def __init__(
        self,
        engine: EngineConfig | None = None,
        config: TransferConfig | None = None,
        model_dir: Path | None = None,
        open_peer: Callable[[str], GrpcPeer] = GrpcPeer,
        tracer: Tracer | None = None,
    ) -> None:
        """Both serve the fake model, or the one in `model_dir`."""
        self.model_dir = model_dir
        self._open_peer = open_peer
        self._tracer = tracer
        self.engine_config = engine or engine_config(block_size=4, num_blocks=64, prefill_chunk_size=8)
        self.config = config or TransferConfig(
            staging_slots=4, staging_slot_bytes=256, max_quarantined_slots=3
        )  # a block

    async def __aenter__(self) -> Pair:
        self.network = LocalNetwork()
        self.d = self._side("d-1")
        self.pools = Pools(self.network, self.d.engine.engine.cache.layout, self.config)
        self.pool = self.pools.client(self.d)
        self.to_d = FakeStream()
        self.ends: list[PrefillEnd] = []
        await self.start_prefill_end("p-1")
        self.metrics = TransferMetrics(self.d.registry, LABELS)
        self.handoffs: list[HandoffRecord] = []
        self.peers = PeerDirectory(
            self.d.info,
            self.d.engine,
            {self.d.transport.name: self.d.transport},
            self.d.ring,
            self.config,
            self.metrics,
            on_ended=self.handoffs.append,
            open_peer=self._open_peer,
        )
        self.decode = DecodeService(
            self.d.engine, self.peers, self.config, RequestBuilder(), _admits, self.metrics, self.pool, self._tracer
        )
        self.d.engine.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.decode.give_up_all("the test ends")
        await self.pool.close()
        await self.peers.close()
        for end in self.ends:
            await end.stop()
        await asyncio.to_thread(self.d.engine.stop)
        self.d.transport.close()
        await self.pools.stop()

    async def start_prefill_end(self, incarnation: str, port: int = 0) -> PrefillEnd:
        """One more P. The last one started is the one that `start` and its like speak to."""
        side = self._side(incarnation)
        end = PrefillEnd(incarnation, side, self.pools.client(side), self._tracer)
        await end.start(port)
        self.ends.append(end)
        self.use(end)
        return end

    def use(self, end: PrefillEnd, address: str | None = None) -> None:
        """The P of the next requests, reached at its own address or through a relay's."""
        self.p, self.prefill, self.to_p = end.side, end.service, end.stream
        self.address = address or end.address

    def start_prefill(self, request: worker_pb2.TokenRequest, ticket: worker_pb2.Ticket) -> None:
        self.prefill.start(worker_pb2.StartPrefill(request=request, ticket=ticket, role_epoch=1), self.to_p)

    def start_decode(self, request: worker_pb2.TokenRequest, ticket: worker_pb2.Ticket | None = None) -> None:
        command = worker_pb2.StartDecode(request=request, attempt=ticket.attempt if ticket else 1, role_epoch=1)
        if ticket is not None:
            source = worker_pb2.KVSource(
                ticket=ticket, address=self.address, incarnation=self.p.info.incarnation, transport="local"
            )
            command.source.CopyFrom(source)
        self.decode.start(command, self.to_d)

    def start(self, request: worker_pb2.TokenRequest, attempt: int = 1, session: bytes | None = None) -> None:
        """As the proxy does: both are told at once."""
        ticket = worker_pb2.Ticket(session=session or os.urandom(16), attempt=attempt)
        self.start_prefill(request, ticket)
        self.start_decode(request, ticket)

    def start_node(self, name: str = "pool-0", num_slots: int = 64) -> PoolEnd:
        return self.pools.start_node(self.d.info, name, num_slots)

    def pool_use(self, *, reads: bool = True, writes_back: bool = False) -> worker_pb2.PoolUse:
        """All nodes that were started."""
        members = [
            worker_pb2.PoolMember(name=m.name, incarnation=m.incarnation, address=m.address) for m in self.pools.members
        ]
        return worker_pb2.PoolUse(members=members, reads=reads, writes_back=writes_back)

    async def prefill_into_pool(self, request: worker_pb2.TokenRequest, attempt: int = 1) -> Any:
        """The first half of a pooled request: what its prefill worker says when it is done, or has failed."""
        ticket = worker_pb2.Ticket(session=os.urandom(16), attempt=attempt)
        command = worker_pb2.StartPrefill(request=request, ticket=ticket, role_epoch=1, pool=self.pool_use())
        self.prefill.start(command, self.to_p)
        return await self.to_p.wait_for(lambda: self.to_p.done(request.request_id))

    def decode_from_pool(
        self, request: worker_pb2.TokenRequest, *, reads: bool = True, writes_back: bool = False, attempt: int = 1
    ) -> None:
        """The second half."""
        pool = self.pool_use(reads=reads, writes_back=writes_back)
        self.decode.start(worker_pb2.StartDecode(request=request, attempt=attempt, role_epoch=1, pool=pool), self.to_d)

    def _side(self, incarnation: str) -> Side:
        return Side.make(incarnation, self.network, self.engine_config, self.config, self.model_dir)

    async def check_idle(self) -> None:
        await self.p.check_idle()
        await self.d.check_idle()

    def sample(self, name: str, **labels: str) -> float:
        return self.d.registry.get_sample_value(name, {**LABELS, **labels}) or 0.0


def _admits(role_epoch: int) -> worker_pb2.FailureCode | None:
    return None if role_epoch == 1 else worker_pb2.FAILURE_ROLE_CHANGED


def token_request(
    request_id: str,
    prompt: list[int],
    max_tokens: int = 6,
    timeout_s: float = 30.0,
    output: list[int] | None = None,
    **sampling: Any,
) -> worker_pb2.TokenRequest:
    neutral = {"top_p": 1.0, "repetition_penalty": 1.0}
    return worker_pb2.TokenRequest(
        request_id=request_id,
        prompt_ids=prompt,
        output_ids=output or [],
        sampling=worker_pb2.SamplingParams(max_tokens=max_tokens, **(neutral | sampling)),
        timeout_s=timeout_s,
    )
