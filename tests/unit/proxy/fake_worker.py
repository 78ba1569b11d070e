"""A scripted worker and controller: the remote ends of the request plane, speaking worker.proto and control.proto.

A test reads what the proxy sent with `next_start` and `next_abort`, and says what the worker answers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc

from engine.block_hash import HashContext, block_hashes
from rpc import control_pb2, control_pb2_grpc, worker_pb2, worker_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION

PATIENCE_S = 5.0
_numbers = itertools.count()


def logprobs_of(token_id: int, num_top: int) -> worker_pb2.TokenLogprobs:
    """The chosen one is the likeliest, those after it are less and less so. Exact in float32."""
    top = range(num_top)
    return worker_pb2.TokenLogprobs(
        logprob=-0.5, top_ids=[(token_id + i) % 256 for i in top], top_logprobs=[-0.5 * (i + 1) for i in top]
    )


class FakeWorker(worker_pb2_grpc.PrefillServicer, worker_pb2_grpc.DecodeServicer):
    """One worker. `restart` gives it a new incarnation, as after a death."""

    def __init__(self, name: str, role: worker_pb2.Role) -> None:
        self.name = name
        self.role = role
        self.incarnation = f"{name}-{next(_numbers)}"
        self.role_epoch = 1
        self.group = ""
        self.protocol_version = PROTOCOL_VERSION
        self.transports = ["nixl"]
        self.max_model_len = 4096
        self.hash_context = HashContext("bytes", "float32", 4)
        self.state = control_pb2.WORKER_READY
        self.load = worker_pb2.Load(num_blocks=100, num_free_blocks=100, admitting=True)
        self.starts: asyncio.Queue[Any] = asyncio.Queue()
        self.aborts: asyncio.Queue[worker_pb2.AbortRequestCommand] = asyncio.Queue()
        self.cache_watches: asyncio.Queue[worker_pb2.WatchCache] = asyncio.Queue()
        self.hellos: list[worker_pb2.Hello] = []
        self.num_pings = 0
        self.pinged = asyncio.Event()
        self.on_start: Callable[[Any], None] | None = None  # instead of `starts`
        self.address = ""
        self._outbox: asyncio.Queue[Any] | None = None
        self._server: grpc.aio.Server | None = None

    @property
    def member(self) -> control_pb2.Member:
        return control_pb2.Member(
            worker=self.name,
            incarnation=self.incarnation,
            role=self.role,
            role_epoch=self.role_epoch,
            group=self.group,
            state=self.state,
            address=self.address,
            metrics_address=f"127.0.0.1:9{len(self.name):03}",
            transports=self.transports,
        )

    async def start(self) -> None:
        self.address = "127.0.0.1:0"
        await self.open_port()

    async def open_port(self) -> None:
        """Where it was before, after a `stop`: the same incarnation can be reached again."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        worker_pb2_grpc.add_PrefillServicer_to_server(self, self._server)
        worker_pb2_grpc.add_DecodeServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(self.address)}"
        await self._server.start()

    async def stop(self) -> None:
        """Dies: its port closes and its streams break."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def restart(self) -> None:
        """Lives again, as another incarnation at another port."""
        await self.stop()
        self.incarnation = f"{self.name}-{next(_numbers)}"
        await self.start()

    async def Session(  # noqa: N802
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        event = worker_pb2.PrefillEvent if self.role == worker_pb2.ROLE_PREFILL else worker_pb2.DecodeEvent
        command = await anext(requests)
        self.hellos.append(command.hello)
        welcome = worker_pb2.Welcome(
            protocol_version=self.protocol_version,
            worker_incarnation=self.incarnation,
            role=self.role,
            role_epoch=self.role_epoch,
            max_model_len=self.max_model_len,
            model_fingerprint=self.hash_context.model_fingerprint,
            kv_dtype=self.hash_context.kv_dtype,
            block_size=self.hash_context.block_size,
        )
        outbox = self._outbox = asyncio.Queue()
        yield event(welcome=welcome)
        yield event(load=self.load)
        reader = asyncio.create_task(self._read(requests))
        try:
            while (message := await outbox.get()) is not None:
                yield event(**message)
        finally:
            reader.cancel()
            if self._outbox is outbox:
                self._outbox = None

    def tell(self, **message: Any) -> None:
        """Sends one event; the stream is up, or the test is wrong."""
        assert self._outbox is not None
        self._outbox.put_nowait(message)

    def end_stream(self) -> None:
        assert self._outbox is not None
        self._outbox.put_nowait(None)

    def report(self, **load: Any) -> None:
        """A new load, as sent on change."""
        for name, value in load.items():
            setattr(self.load, name, value)
        self.tell(load=self.load)

    def report_often(self, interval_s: float) -> None:
        """The heartbeat of a living worker, until the stream ends."""
        if self._outbox is not None:
            self.report()
            asyncio.get_running_loop().call_later(interval_s, self.report_often, interval_s)

    def say(
        self,
        start: worker_pb2.StartDecode,
        text: bytes,
        *,
        index: int = 0,
        finish: str = "",
        attempt: int | None = None,
        logprobs: Sequence[worker_pb2.TokenLogprobs] | None = None,
        **origin: int,
    ) -> None:
        """Tokens of a request: one for each byte, with logprobs where they were asked for; `origin`: its counts."""
        sampling = start.request.sampling
        if logprobs is None and sampling.HasField("num_logprobs"):
            logprobs = [logprobs_of(byte, sampling.num_logprobs) for byte in text]
        came_from = worker_pb2.Origin()
        for name, count in origin.items():
            setattr(came_from, name, count)
        tokens = worker_pb2.RequestTokens(
            request_id=start.request.request_id,
            attempt=start.attempt if attempt is None else attempt,
            index=index,
            ids=list(text),
            finish_reason=finish,
            origin=came_from,
            logprobs=logprobs,
        )
        self.tell(tokens=worker_pb2.StepTokens(requests=[tokens]))

    def prefilled(self, start: worker_pb2.StartPrefill) -> None:
        request_id, attempt = start.request.request_id, start.ticket.attempt
        self.tell(done=worker_pb2.PrefillProgress(request_id=request_id, attempt=attempt))

    def handoff_failed(self, start: worker_pb2.StartDecode, reason: str = "transfer_failed") -> None:
        failed = worker_pb2.HandoffFailed(request_id=start.request.request_id, attempt=start.attempt, reason=reason)
        self.tell(handoff_failed=failed)

    def failed(self, start: Any, code: worker_pb2.FailureCode, message: str = "no") -> None:
        attempt = start.ticket.attempt if isinstance(start, worker_pb2.StartPrefill) else start.attempt
        request_id = start.request.request_id
        self.tell(failed=worker_pb2.RequestFailed(request_id=request_id, attempt=attempt, code=code, message=message))

    def answer(self, text: bytes, *, size: int = 2, finish: str = "length") -> None:
        """From now on every request gets this text, `size` tokens at a time."""

        def speak(start: worker_pb2.StartDecode) -> None:
            for index in range(0, len(text), size):
                is_last = index + size >= len(text)
                self.say(start, text[index : index + size], index=index, finish=finish if is_last else "")

        self.on_start = speak

    async def next_start(self) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await self.starts.get()

    async def next_abort(self) -> worker_pb2.AbortRequestCommand:
        async with asyncio.timeout(PATIENCE_S):
            return await self.aborts.get()

    async def next_cache_watch(self) -> worker_pb2.WatchCache:
        async with asyncio.timeout(PATIENCE_S):
            return await self.cache_watches.get()

    def caches(self, text: bytes, *, after: int = 0, through: int = 1, salt: str = "") -> None:
        """Says that its cache holds the full blocks of this prompt from now on."""
        stored = b"".join(block_hashes(self.hash_context.with_salt(salt), list(text)))
        self.tell(cache=worker_pb2.CacheUpdate(after=after, through=through, stored=stored))

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        async for command in requests:
            match command.WhichOneof("command"):
                case "start" if self.on_start is not None:
                    self.on_start(command.start)
                case "start":
                    self.starts.put_nowait(command.start)
                case "abort":
                    self.aborts.put_nowait(command.abort)
                case "watch_cache":
                    self.cache_watches.put_nowait(command.watch_cache)
                case "ping":
                    self.num_pings += 1
                    self.pinged.set()


class FakeController(control_pb2_grpc.MembershipServicer):
    """Streams a membership, again after each `publish`, and takes the reports that it asks for."""

    def __init__(self) -> None:
        self.address = ""
        self.traffic_every_s = 0.0
        self.metrics_address = ""
        self.reports: asyncio.Queue[control_pb2.TrafficReport] = asyncio.Queue()
        self.num_watches = 0
        self._members: list[control_pb2.Member] = []
        self._pool_nodes: list[control_pb2.Member] = []
        self._version = 0
        self._watchers: set[asyncio.Queue[None]] = set()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        control_pb2_grpc.add_MembershipServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def publish(self, workers: Sequence[FakeWorker], pool_nodes: Sequence[control_pb2.Member] = ()) -> None:
        self._members = [worker.member for worker in workers]
        self._pool_nodes = list(pool_nodes)
        self._version += 1
        for watcher in self._watchers:
            watcher.put_nowait(None)

    async def Watch(  # noqa: N802
        self, request: control_pb2.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[control_pb2.Members]:
        self.num_watches += 1
        watcher: asyncio.Queue[None] = asyncio.Queue()
        self._watchers.add(watcher)
        try:
            while True:
                yield control_pb2.Members(
                    version=self._version,
                    members=self._members,
                    pool_nodes=self._pool_nodes,
                    traffic_every_s=self.traffic_every_s,
                    metrics_address=self.metrics_address,
                )
                await watcher.get()
        finally:
            self._watchers.discard(watcher)

    async def ReportTraffic(  # noqa: N802
        self, request: control_pb2.TrafficReport, context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.TrafficReportTaken:
        self.reports.put_nowait(request)
        return control_pb2.TrafficReportTaken()
