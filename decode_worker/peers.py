"""The prefill workers that this decode worker takes KV from: one link for each incarnation, made on first use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from decode_worker.grpc_peer import GrpcPeer
from engine.engine_thread import EngineThread
from engine.request import Request
from kv_transfer.config import TransferConfig
from kv_transfer.handoff import Handoff, HandoffResult
from kv_transfer.messages import PeerInfo, Ticket
from kv_transfer.metrics import TransferMetrics
from kv_transfer.peer_link import PeerLink
from kv_transfer.staging import StagingRing
from kv_transfer.transport import Transport
from rpc import worker_pb2


@dataclass(slots=True, eq=False)
class Connection:
    peer: GrpcPeer
    link: PeerLink
    num_open: int = 0  # hand-offs
    used_at: float = 0.0


class PeerDirectory:
    """Maintains a `Connection` per incarnation; one that nothing used for `idle_peer_s` is let go of."""

    def __init__(
        self,
        me: PeerInfo,
        engine: EngineThread,
        transport: Transport,
        ring: StagingRing,
        config: TransferConfig,
        metrics: TransferMetrics,
    ) -> None:
        self._me = me
        self._engine = engine
        self._transport = transport
        self._ring = ring
        self._config = config
        self._metrics = metrics
        self._connections: dict[str, Connection] = {}  # by incarnation

    async def receive(
        self, source: worker_pb2.KVSource, ticket: Ticket, request: Request, deadline: float
    ) -> HandoffResult:
        """Fills the request's blocks from the source. Raises HandoffError; `deadline` is on the loop's clock."""
        clock = asyncio.get_running_loop().time
        await self._forget_idle(clock())
        connection = self._connect(source)
        connection.num_open += 1
        try:
            handoff = Handoff(
                request, ticket, connection.link, self._engine, self._ring, self._config, source.transport
            )
            result = await handoff.run(deadline)
        finally:
            connection.num_open -= 1
            connection.used_at = clock()
        self._metrics.received(result)
        return result

    async def close(self) -> None:
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            await _disconnect(connection)

    def _connect(self, source: worker_pb2.KVSource) -> Connection:
        connection = self._connections.get(source.incarnation)
        if connection is None:
            peer = GrpcPeer(source.address)
            transports = {self._transport.name: self._transport}
            link = PeerLink(peer, source.incarnation, self._me, transports, self._config)
            connection = self._connections[source.incarnation] = Connection(peer, link)
        return connection

    async def _forget_idle(self, now: float) -> None:
        for incarnation, connection in list(self._connections.items()):
            if connection.num_open == 0 and now - connection.used_at > self._config.idle_peer_s:
                del self._connections[incarnation]
                await _disconnect(connection)


async def _disconnect(connection: Connection) -> None:
    await connection.link.close()
    await connection.peer.disconnect()
