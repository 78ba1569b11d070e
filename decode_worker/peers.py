"""The prefill workers that this decode worker takes KV from: one link for each incarnation at each address."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from decode_worker.grpc_peer import GrpcPeer
from engine.engine_thread import EngineThread
from engine.request import Request
from kv_transfer.config import TransferConfig
from kv_transfer.handoff import Handoff, HandoffResult
from kv_transfer.messages import FailureReason, HandoffError, PeerInfo, Ticket
from kv_transfer.metrics import TransferMetrics
from kv_transfer.peer_address import PeerAddress
from kv_transfer.peer_link import PeerLink
from kv_transfer.staging import StagingRing
from kv_transfer.transfer_record import HandoffRecord
from kv_transfer.transport import Transport
from rpc import worker_pb2

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Connection:
    peer: GrpcPeer
    link: PeerLink
    num_open: int = 0  # hand-offs
    used_at: float = 0.0


class PeerDirectory:
    """Maintains a `Connection` per incarnation and address; one that nothing used for `idle_peer_s` is let go of."""

    def __init__(
        self,
        me: PeerInfo,
        engine: EngineThread,
        transports: Mapping[str, Transport],
        ring: StagingRing,
        config: TransferConfig,
        metrics: TransferMetrics,
        on_ended: Callable[[HandoffRecord], None] = lambda handoff: None,
        open_peer: Callable[[str], GrpcPeer] = GrpcPeer,
    ) -> None:
        self._me = me
        self._engine = engine
        self._transports = transports
        self._ring = ring
        self._config = config
        self._metrics = metrics
        self._on_ended = on_ended  # of each hand-off, however it ended
        self._open_peer = open_peer  # at an address
        self._connections: dict[tuple[str, str], Connection] = {}  # by incarnation and address
        self._closing: set[asyncio.Task[None]] = set()

    async def receive(
        self, source: worker_pb2.KVSource, ticket: Ticket, request: Request, deadline: float
    ) -> HandoffResult:
        """Fills the request's blocks from the source. Raises HandoffError; `deadline` is on the loop's clock."""
        clock = asyncio.get_running_loop().time
        self._forget_idle(clock())
        connection = self._connect(PeerAddress(source.incarnation, source.address))
        connection.num_open += 1
        started_at = clock()
        outcome: HandoffResult | FailureReason = FailureReason.ABORTED
        try:
            handoff = Handoff(
                request, ticket, connection.link, self._engine, self._ring, self._config, source.transport
            )
            result = outcome = await handoff.run(deadline)
        except HandoffError as error:
            outcome = error.reason
            raise
        finally:
            connection.num_open -= 1
            connection.used_at = clock()
            self._on_ended(HandoffRecord(request.request_id, ticket, source.incarnation, started_at, clock(), outcome))
        self._metrics.received(result)
        return result

    async def close(self) -> None:
        for key in list(self._connections):
            self._let_go(key)
        if self._closing:
            await asyncio.wait(self._closing)

    async def meet(self, peers: Sequence[PeerAddress]) -> None:
        """Shakes hands with peers that a hand-off may soon come from; each within the handshake's deadline.

        A peer that does not answer is logged: its first hand-off tries again.
        """
        await asyncio.gather(*(self._meet(peer) for peer in peers))

    async def _meet(self, peer: PeerAddress) -> None:
        connection = self._connect(peer)
        connection.num_open += 1  # so that nobody lets go of it meanwhile
        try:
            await connection.link.connect()
        except HandoffError as error:
            logger.warning("%s at %s could not be met: %s", peer.incarnation, peer.address, error)
        finally:
            connection.num_open -= 1
            connection.used_at = asyncio.get_running_loop().time()

    def _connect(self, source: PeerAddress) -> Connection:
        key = (source.incarnation, source.address)
        connection = self._connections.get(key)
        if connection is None:
            peer = self._open_peer(source.address)
            link = PeerLink(peer, source.incarnation, self._me, self._transports, self._config)
            connection = self._connections[key] = Connection(peer, link)
        return connection

    def _forget_idle(self, now: float) -> None:
        for key, connection in list(self._connections.items()):
            if connection.num_open == 0 and now - connection.used_at > self._config.idle_peer_s:
                self._let_go(key)

    def _let_go(self, key: tuple[str, str]) -> None:
        """In the background: nobody's hand-off waits for the end of an old peer."""
        closing = asyncio.get_running_loop().create_task(_disconnect(self._connections.pop(key)))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


async def _disconnect(connection: Connection) -> None:
    await connection.link.close()
    await connection.peer.disconnect()
