"""The worker's end of the request plane: one bidirectional stream per proxy and service, many requests in it.

A request belongs to its stream: when that ends, however it ends, its service is told and aborts just its requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from cluster.cache_reporter import CacheReporter
from engine.block_hash import HashContext
from rpc import worker_pb2, worker_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION

HELLO_TIMEOUT_S = 5.0
SILENT_PROXY_S = 10.0
LOAD_INTERVAL_S = 1.0
LOAD_MIN_INTERVAL_S = 0.05
logger = logging.getLogger(__name__)

Event = worker_pb2.PrefillEvent | worker_pb2.DecodeEvent
Command = worker_pb2.PrefillCommand | worker_pb2.DecodeCommand


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this worker is now. A role change is a new identity."""

    incarnation: str
    role: worker_pb2.Role
    role_epoch: int
    max_model_len: int  # tokens that a request may have here
    hash_context: HashContext  # of requests without a salt


class RequestStream:
    """One proxy's stream epoch. `send` never blocks; what a silent proxy leaves unread goes when the stream ends."""

    def __init__(self, event_type: type[Event], proxy_incarnation: str) -> None:
        self.proxy_incarnation = proxy_incarnation
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._event_type = event_type

    def send(self, **event: Any) -> None:  # one field of the event's oneof
        self.events.put_nowait(self._event_type(**event))


class StreamService(Protocol):
    """What a stream drives: `PrefillService` or `DecodeService`. Called on the event loop; returns at once."""

    def start(self, command: Any, stream: RequestStream) -> None: ...

    def abort(self, request_id: str, attempt: int, stream: RequestStream) -> None: ...

    def end_stream(self, stream: RequestStream) -> None: ...


class LoadReporter:
    """Tells every stream the `Load`: each second, and soon after it changed."""

    def __init__(self, current: Callable[[], worker_pb2.Load]) -> None:
        self._current = current
        self._streams: dict[RequestStream, asyncio.Event] = {}

    def notify(self) -> None:
        for changed in self._streams.values():
            changed.set()

    async def report(self, stream: RequestStream) -> None:
        changed = self._streams[stream] = asyncio.Event()
        try:
            while True:
                changed.clear()
                stream.send(load=self._current())
                await asyncio.sleep(LOAD_MIN_INTERVAL_S)  # a change a step would be a message a step
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOAD_INTERVAL_S):
                        await changed.wait()
        finally:
            del self._streams[stream]


class StreamServer(worker_pb2_grpc.PrefillServicer, worker_pb2_grpc.DecodeServicer):
    """Greets, reads, writes and watches the streams of one service."""

    def __init__(
        self,
        service: StreamService,
        event_type: type[Event],
        identity: Callable[[], Identity],
        loads: LoadReporter,
        caches: CacheReporter,
        silent_proxy_s: float = SILENT_PROXY_S,
    ) -> None:
        self._silent_proxy_s = silent_proxy_s
        self._service = service
        self._event_type = event_type
        self._identity = identity
        self._loads = loads
        self._caches = caches

    async def Session(  # noqa: N802  gRPC's name
        self, _requests: Any, context: grpc.aio.ServicerContext[Command, Event]
    ) -> None:
        stream = await self._greet(context)
        tasks = [
            asyncio.create_task(self._read(context, stream)),
            asyncio.create_task(self._write(context, stream)),
            asyncio.create_task(self._loads.report(stream)),
            asyncio.create_task(self._caches.report(stream)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            try:
                ends = await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                self._service.end_stream(stream)  # after the reader's end, so that nothing starts on a dead stream
            faults = [end for end in ends if isinstance(end, Exception)]
            logger.info("stream of proxy %s ended %s", stream.proxy_incarnation, faults or "")

    async def _greet(self, context: grpc.aio.ServicerContext[Command, Event]) -> RequestStream:
        identity = self._identity()
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                command = await context.read()
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello within {HELLO_TIMEOUT_S:g} s")
        if not isinstance(command, Command) or not command.HasField("hello"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message of a stream is hello")
        hello = command.hello
        if hello.protocol_version != PROTOCOL_VERSION:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"protocol_version {hello.protocol_version} of the proxy is not this worker's {PROTOCOL_VERSION}: "
                "upgrade the older of the two",
            )
        if hello.worker_incarnation and hello.worker_incarnation != identity.incarnation:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"worker_incarnation {hello.worker_incarnation} is gone; {identity.incarnation} serves here",
            )
        stream = RequestStream(self._event_type, hello.proxy_incarnation)
        welcome = worker_pb2.Welcome(
            protocol_version=PROTOCOL_VERSION,
            worker_incarnation=identity.incarnation,
            role=identity.role,
            role_epoch=identity.role_epoch,
            max_model_len=identity.max_model_len,
            model_fingerprint=identity.hash_context.model_fingerprint,
            kv_dtype=identity.hash_context.kv_dtype,
            block_size=identity.hash_context.block_size,
        )
        stream.send(welcome=welcome)
        return stream

    async def _read(self, context: grpc.aio.ServicerContext[Command, Event], stream: RequestStream) -> None:
        while True:
            try:
                async with asyncio.timeout(self._silent_proxy_s):
                    command = await context.read()
            except TimeoutError:
                logger.warning("proxy %s is silent for %g s", stream.proxy_incarnation, self._silent_proxy_s)
                return
            if not isinstance(command, Command):  # the end of the stream
                return
            try:
                self._obey(command, stream)
            except Exception:  # one command's fault must not end the others' stream
                logger.exception("a command of proxy %s failed: %s", stream.proxy_incarnation, command)

    def _obey(self, command: Command, stream: RequestStream) -> None:
        match command.WhichOneof("command"):
            case "start":
                self._service.start(command.start, stream)
            case "abort":
                self._service.abort(command.abort.request_id, command.abort.attempt, stream)
            case "watch_cache":
                self._caches.watch(stream, command.watch_cache.after)

    async def _write(self, context: grpc.aio.ServicerContext[Command, Event], stream: RequestStream) -> None:
        while True:
            await context.write(await stream.events.get())
