"""A controller's membership with a relay before each worker: whoever follows it reaches workers through relays only.

That is a proxy, and by the addresses that the proxy hands on also decode workers on their way to prefill workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from bench.chaos.relay import Relay
from rpc import control_pb2, control_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION

RETRY_S = 0.5


class RelayedMembership(control_pb2_grpc.MembershipServicer):
    """Maintains a relay for each incarnation in the controller's newest membership. Use as a context."""

    def __init__(self, controller: str) -> None:
        self.address = ""
        self._controller = controller
        self._relays: dict[str, Relay] = {}  # by incarnation
        self._members: control_pb2.Members | None = None
        self._changed = asyncio.Event()  # a new one after each change
        self._server = grpc.aio.server()
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> RelayedMembership:
        control_pb2_grpc.add_MembershipServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._server.stop(None)
        for relay in self._relays.values():
            await relay.close()

    def relay(self, incarnation: str) -> Relay | None:
        """None while, or after, the membership has it not."""
        return self._relays.get(incarnation)

    async def Watch(  # noqa: N802  gRPC's name
        self, request: control_pb2.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[control_pb2.Members]:
        while True:
            changed = self._changed
            if self._members is not None:
                yield self._members
            await changed.wait()

    async def _follow(self) -> None:
        while True:
            try:
                async with grpc.aio.insecure_channel(self._controller) as channel:
                    request = control_pb2.WatchRequest(protocol_version=PROTOCOL_VERSION)
                    async for members in control_pb2_grpc.MembershipStub(channel).Watch(request):
                        await self._take(members)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(RETRY_S)

    async def _take(self, members: control_pb2.Members) -> None:
        relayed = control_pb2.Members()
        relayed.CopyFrom(members)
        for member in relayed.members:
            if member.address:
                member.address = f"127.0.0.1:{(await self._relay_before(member)).port}"
        living = {member.incarnation for member in members.members}
        for incarnation in self._relays.keys() - living:
            await self._relays.pop(incarnation).close()
        self._members = relayed
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _relay_before(self, member: control_pb2.Member) -> Relay:
        relay = self._relays.get(member.incarnation)
        if relay is None:
            host, _, port = member.address.rpartition(":")
            relay = self._relays[member.incarnation] = Relay(host.strip("[]"), int(port))
            await relay.start()
        return relay
