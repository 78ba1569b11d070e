"""The two ends of the pool over bad lines: a node as workers see it, and a worker that offers as nodes see it."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from kv_transfer.messages import BlockRef, PeerInfo, Ticket
from kv_transfer.pool_messages import OfferSource
from kv_transfer.pool_node import PoolNode
from kv_transfer.pool_source import OfferingWorker
from tests.faults.fault import Message
from tests.faults.line import Line, Wire


class FaultyPoolNode:
    """A `PoolNode` over another one. Messages are numbered by the wire."""

    def __init__(self, node: PoolNode, wire: Wire) -> None:
        self._node = node
        self._name = wire.name
        self._line = Line(wire)

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        def call() -> Coroutine[Any, Any, PeerInfo]:
            return self._node.handshake(me, incarnation)

        return await self._line.call(Message.POOL_HANDSHAKE, Message.POOL_INTRODUCTION, self._name, call)

    async def lookup(self, reader: Ticket, keys: Sequence[bytes]) -> list[BlockRef | None]:
        def call() -> Coroutine[Any, Any, list[BlockRef | None]]:
            return self._node.lookup(reader, keys)

        return await self._line.call(Message.LOOKUP, Message.FOUND, self._name, call)

    async def commit(self, reader: Ticket, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        def call() -> Coroutine[Any, Any, list[bool]]:
            return self._node.commit(reader, keys, refs)

        return await self._line.call(Message.POOL_COMMIT, Message.POOL_VERDICT, self._name, call)

    async def close(self, reader: Ticket) -> None:
        def call() -> Coroutine[Any, Any, None]:
            return self._node.close(reader)

        await self._line.call(Message.POOL_CLOSE, Message.POOL_CLOSED, self._name, call)

    async def offer(self, source: OfferSource, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        def call() -> Coroutine[Any, Any, list[bool]]:
            return self._node.offer(source, keys, refs)

        return await self._line.call(Message.OFFER, Message.HELD, self._name, call)

    async def disconnect(self) -> None:
        await self._node.disconnect()


class FaultyOfferingWorker:
    """An `OfferingWorker` over another one."""

    def __init__(self, worker: OfferingWorker, wire: Wire) -> None:
        self._worker = worker
        self._name = wire.name
        self._line = Line(wire)

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        def call() -> Coroutine[Any, Any, PeerInfo]:
            return self._worker.handshake(me, incarnation)

        return await self._line.call(Message.PULL_HANDSHAKE, Message.PULL_INTRODUCTION, self._name, call)

    async def commit_offer(self, ticket: Ticket, refs: Sequence[BlockRef]) -> list[bool]:
        def call() -> Coroutine[Any, Any, list[bool]]:
            return self._worker.commit_offer(ticket, refs)

        return await self._line.call(Message.PULL_COMMIT, Message.PULL_VERDICT, self._name, call)

    async def disconnect(self) -> None:
        await self._worker.disconnect()
