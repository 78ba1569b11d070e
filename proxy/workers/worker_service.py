"""A worker's two services as the proxy calls them, and the greeting that opens a stream to either.

Only the worker that is meant passes the greeting: same protocol, same incarnation, same role.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from rpc import control_pb2, worker_pb2, worker_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION


class WorkerRefused(Exception):
    """The worker answered, but not as the one that is meant."""


@dataclass(frozen=True, slots=True)
class Service:
    """One of a worker's two services."""

    name: str
    stub: Callable[[grpc.aio.Channel], Any]
    command: Callable[..., Any]

    async def greet(self, call: Any, member: control_pb2.Member, proxy_incarnation: str) -> worker_pb2.Welcome:
        """The first message of each side of a new stream. Raises WorkerRefused, AioRpcError."""
        hello = worker_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            proxy_incarnation=proxy_incarnation,
            worker_incarnation=member.incarnation,
        )
        await call.write(self.command(hello=hello))
        event = await call.read()
        if event is grpc.aio.EOF or not event.HasField("welcome"):
            raise WorkerRefused("the worker did not say welcome")
        welcome: worker_pb2.Welcome = event.welcome
        if welcome.protocol_version != PROTOCOL_VERSION:
            raise WorkerRefused(
                f"protocol_version {welcome.protocol_version} of the worker is not this proxy's {PROTOCOL_VERSION}"
            )
        if welcome.worker_incarnation != member.incarnation:
            raise WorkerRefused(f"incarnation {welcome.worker_incarnation} answers instead of {member.incarnation}")
        if welcome.role != member.role:
            raise WorkerRefused("its role is not the one of the membership")
        return welcome


PREFILL = Service("Prefill", worker_pb2_grpc.PrefillStub, worker_pb2.PrefillCommand)
DECODE = Service("Decode", worker_pb2_grpc.DecodeStub, worker_pb2.DecodeCommand)
