"""The proxy's end of the request plane: one stream to one service of one worker incarnation, many requests in it.

`run` keeps the stream up for as long as the worker is a member. When it breaks, or the worker is silent for 10 s, every
request in it is told `LinkLost`, once; the worker drops them by itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from engine.block_hash import HashContext
from proxy.routing.prefix_index import PrefixIndex
from proxy.routing.worker_view import WorkerView
from proxy.workers.breaker import Breaker
from proxy.workers.channel import open_channel
from proxy.workers.worker_service import Service, WorkerRefused
from proxy.workers.worker_tally import WorkerTally
from rpc import control_pb2, worker_pb2
from security.channel_tls import ChannelTls

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The stream is gone, and with it all that the worker did for this request."""

    reason: str


LinkEvent = (
    worker_pb2.RequestTokens
    | worker_pb2.PrefillProgress
    | worker_pb2.HandoffFailed
    | worker_pb2.RequestFailed
    | LinkLost
)
Listener = Callable[["WorkerLink", LinkEvent], None]


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """A link's deadlines and intervals, all in seconds."""

    connect_s: float = 5.0
    ping_s: float = 2.0  # the worker takes a proxy for dead after 10
    silent_s: float = 10.0  # a worker reports its load each second
    first_backoff_s: float = 0.1
    last_backoff_s: float = 3.0


class WorkerLink:
    """Maintains the stream, the tally of the worker's load, and who listens to which request."""

    def __init__(
        self,
        member: control_pb2.Member,
        service: Service,
        proxy_incarnation: str,
        on_change: Callable[[], None],
        times: LinkTimes,
        index: PrefixIndex,
        tls: ChannelTls | None = None,
    ) -> None:
        self._member = member
        self._tls = tls
        self.service = service
        self.role_epoch = 0
        self.max_model_len: int | None = None  # tokens of one request; known from the first welcome on
        self.hash_context: HashContext | None = None  # of requests without a salt; likewise
        self.tally = WorkerTally()  # a new one with each stream
        self.breaker = Breaker(time.monotonic)
        self.num_streams = 0  # that were up, this one too
        self.was_tried = False  # the first connection ended, well or not
        self._proxy_incarnation = proxy_incarnation
        self._on_change = on_change
        self._times = times
        self._index = index  # of what the workers' caches hold
        self._commands: asyncio.Queue[Any] | None = None  # while the stream is up
        self._listeners: dict[str, Listener] = {}

    @property
    def member(self) -> control_pb2.Member:
        """As the newest membership has it."""
        return self._member

    def update_member(self, member: control_pb2.Member) -> None:
        """What a newer membership says of the same incarnation."""
        self._member = member

    @property
    def worker(self) -> str:
        return self.member.worker

    @property
    def incarnation(self) -> str:
        return self.member.incarnation

    @property
    def is_up(self) -> bool:
        return self._commands is not None

    @property
    def is_usable(self) -> bool:
        """Whether a new request may be sent here."""
        ready = self.member.state == control_pb2.WORKER_READY
        return self.is_up and ready and self.tally.is_admitting

    @property
    def num_requests(self) -> int:
        return len(self._listeners)

    def view(self, num_cached_tokens: int = 0) -> WorkerView:
        """`num_cached_tokens`: of the prompt in question."""
        return self.tally.view(self.worker, len(self._listeners), num_cached_tokens)

    def start(self, message: worker_pb2.StartPrefill | worker_pb2.StartDecode, listener: Listener) -> None:
        """Sends the request; from now on `listener` hears of it. Raises RuntimeError when the link is down."""
        request = message.request
        self._send(start=message)
        self._listeners[request.request_id] = listener
        self.tally.sent(request)
        self.breaker.sent(request.request_id)

    def forget(self, request_id: str) -> None:
        """Nobody listens to this request any more."""
        self._listeners.pop(request_id, None)
        self.tally.forget(request_id)
        self.breaker.ended(request_id)

    def abort(self, request_id: str, attempt: int) -> None:
        """Ends the request on the worker, up to this attempt, and forgets it. Does nothing when the link is down."""
        self.forget(request_id)
        if self.is_up:
            self._send(abort=worker_pb2.AbortRequestCommand(request_id=request_id, attempt=attempt))

    async def run(self) -> None:
        """Connects, and again after each break, until cancelled."""
        backoff = self._times.first_backoff_s
        while True:
            try:
                await self._connect()
                reason = "the worker ended the stream"
            except TimeoutError:
                limit_s = self._times.silent_s if self.is_up else self._times.connect_s
                reason = f"silent for {limit_s:g} s"
            except WorkerRefused as refused:
                reason = str(refused)
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except Exception:  # the link's main loop: a fault here must not cost the worker
                logger.exception("fault in the link to %s", self.worker)
                reason = "a fault in the proxy"
            finally:
                was_up = self.is_up
                self._close(f"the link to {self.worker} broke")
            self.was_tried = True
            backoff = self._times.first_backoff_s if was_up else min(2 * backoff, self._times.last_backoff_s)
            logger.log(
                logging.WARNING if was_up else logging.DEBUG,
                "link to %s (%s, %s) is down: %s",
                self.worker,
                self.service.name,
                self.member.address,
                reason,
            )
            self._on_change()
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))

    async def _connect(self) -> None:
        async with open_channel(self.member.address, self._tls) as channel:
            call = self.service.stub(channel).Session()
            try:
                async with asyncio.timeout(self._times.connect_s):
                    welcome = await self.service.greet(call, self.member, self._proxy_incarnation)
                self._open(welcome)
                writer = asyncio.create_task(self._write(call))
                try:
                    await self._read(call)
                finally:
                    writer.cancel()
                    await asyncio.gather(writer, return_exceptions=True)
            finally:
                call.cancel()

    def _open(self, welcome: worker_pb2.Welcome) -> None:
        self.num_streams += 1
        self.role_epoch = welcome.role_epoch
        self.max_model_len = welcome.max_model_len or None
        if welcome.block_size:
            self.hash_context = HashContext(welcome.model_fingerprint, welcome.kv_dtype, welcome.block_size)
        self._commands = asyncio.Queue()
        self._watch_cache()
        logger.info("link to %s (%s, %s) is up", self.worker, self.service.name, self.member.address)

    async def _read(self, call: Any) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._times.silent_s) as silence:
            while (event := await call.read()) is not grpc.aio.EOF:
                silence.reschedule(loop.time() + self._times.silent_s)
                self._take(event)

    async def _write(self, call: Any) -> None:
        """Sends what is queued, and a ping when nothing is. Ends when the stream breaks; the reader sees that too."""
        commands = self._commands
        assert commands is not None
        while True:
            try:
                async with asyncio.timeout(self._times.ping_s):
                    command = await commands.get()
            except TimeoutError:
                command = self.service.command(ping=worker_pb2.Ping())
            try:
                await call.write(command)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return

    def _take(self, event: Any) -> None:
        match event.WhichOneof("event"):
            case "tokens":
                for tokens in event.tokens.requests:
                    self._tell(tokens.request_id, tokens)
            case "load":
                self.tally.reported(event.load)
                self.was_tried = True
                self._on_change()
            case "cache":
                if not self._index.apply(self.incarnation, event.cache):
                    self._watch_cache()
            case "done" | "handoff_failed" | "failed" as kind:
                message = getattr(event, kind)
                self._tell(message.request_id, message)

    def _watch_cache(self) -> None:
        """Asks for what the index lacks of this worker's cache."""
        self._send(watch_cache=worker_pb2.WatchCache(after=self._index.num_changes(self.incarnation)))

    def _tell(self, request_id: str, event: LinkEvent) -> None:
        listener = self._listeners.get(request_id)
        if listener is not None:  # else it was aborted here while the worker spoke
            listener(self, event)

    def _send(self, **command: Any) -> None:
        if self._commands is None:
            raise RuntimeError(f"the link to {self.worker} is down")
        self._commands.put_nowait(self.service.command(**command))

    def _close(self, reason: str) -> None:
        self._commands = None
        self.tally = WorkerTally()
        listeners, self._listeners = self._listeners, {}
        if listeners:
            self.breaker.failed()
        for listener in listeners.values():
            listener(self, LinkLost(reason))
