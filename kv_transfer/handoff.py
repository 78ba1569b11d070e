"""One attempt to take one prompt's KV over from a peer, on D's event loop.

Ends with KV that the peer called Valid, or with HandoffError and nothing left behind: no slot busy, the lease closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine.engine import Engine
from engine.engine_thread import EngineThread
from engine.errors import EngineStopped
from engine.request import FinishReason, Request
from engine.sampled_token import SampledToken
from kv_transfer.block_part import layer_part
from kv_transfer.block_reader import BlockReader, Span
from kv_transfer.config import TransferConfig
from kv_transfer.handoff_plan import Announcements, Plan, Readable
from kv_transfer.messages import FailureReason, HandoffError, PrefillDone, SessionEnded, Ticket, Verdict
from kv_transfer.peer import PeerUnavailable
from kv_transfer.peer_link import PeerLink
from kv_transfer.staging import StagingRing

T = TypeVar("T")
logger = logging.getLogger(__name__)
FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0
SILENCES = (FailureReason.PEER_SILENT, FailureReason.TRANSFER_TIMEOUT, FailureReason.VERDICT_TIMEOUT)
VERDICT_TRIES = 3  # within verdict_timeout_s, when answers are lost


@dataclass(frozen=True, slots=True)
class HandoffResult:
    """What came over. Without `kv_valid` no KV did: `finish_reason` says why `first_token` needs none."""

    first_token: SampledToken
    finish_reason: FinishReason | None  # of the request, when its first token ends it
    kv_valid: bool
    received_tokens: int
    received_bytes: int
    prefill_cached_tokens: int  # found in P's prefix cache
    transport: str
    stages: dict[str, float]  # seconds: handshake, wait_ready, transfer (what prefill did not hide), validate
    transfer_s: float  # from the first read to the last byte
    overlap_ratio: float | None  # share of the reads' time before prefill was done; None when nothing was read
    reads: tuple[Span, ...]


@dataclass(slots=True)
class Stages:
    """Maintains how long each stage took; the next one starts where the last ended."""

    seconds: dict[str, float] = field(default_factory=dict)
    ended_at: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    def end(self, stage: str) -> None:
        now = asyncio.get_running_loop().time()
        self.seconds[stage] = now - self._since
        self.ended_at[stage] = self._since = now


class Handoff:
    """One use: `run`, which may be cancelled at any point. The request is RECEIVING, with its blocks in place."""

    def __init__(
        self,
        request: Request,
        ticket: Ticket,
        link: PeerLink,
        engine: EngineThread,
        ring: StagingRing,
        config: TransferConfig,
        transport_name: str = "",
    ) -> None:
        self._request = request
        self._ticket = ticket
        self._link = link
        self._engine = engine
        self._ring = ring
        self._config = config
        self._transport_name = transport_name

    async def run(self, deadline: float) -> HandoffResult:
        """`deadline`: the request's own, on the loop's clock. Afterwards `Engine.accept` may run the request."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._run()
        except TimeoutError:
            raise HandoffError(FailureReason.DEADLINE, "the request's deadline passed during the hand-off") from None
        except EngineStopped as error:
            raise HandoffError(FailureReason.INTERNAL, str(error)) from error

    async def _run(self) -> HandoffResult:
        stages = Stages()
        transport = await self._link.connect(self._transport_name)
        stages.end("handshake")
        plan = await asyncio.wrap_future(self._engine.call(self._plan))
        announced = Announcements(plan)
        reader = BlockReader(
            self._request,
            plan,
            self._link.incarnation,
            transport,
            self._engine,
            self._ring,
            self._config,
            self._link.turns,
        )
        valid = False
        try:
            with self._link.lease(self._ticket) as lost:
                done = await unless(lost, self._take_over(announced, reader, stages))
            finish_reason = plan.finish_reason(done.first_token.token_id)
            if finish_reason is None:
                await self._commit(announced, reader, transport.name)
                valid = True
                stages.end("validate")
        except HandoffError as error:
            if error.reason is FailureReason.TRANSFER_FAILED:
                self._link.disconnect()
            elif error.reason in SILENCES:
                self._link.suspect(transport.name, reader.in_doubt)
            raise
        finally:
            if not valid:
                self._link.close_session(self._ticket)
        return HandoffResult(
            first_token=done.first_token,
            finish_reason=finish_reason,
            kv_valid=valid,
            received_tokens=plan.num_tokens - plan.have_tokens if valid else 0,
            received_bytes=reader.num_bytes,
            prefill_cached_tokens=done.cached_tokens,
            transport=transport.name,
            stages=stages.seconds,
            transfer_s=reader.transfer_s(),
            overlap_ratio=reader.overlap_ratio(stages.ended_at["wait_ready"]),
            reads=tuple(reader.spans),
        )

    def _plan(self, engine: Engine) -> Plan:
        order = engine.scheduler.waiting.order(self._request)
        return Plan.of(self._request, engine.hash_context, order, engine.cache.layout.num_layers)

    async def _take_over(self, announced: Announcements, reader: BlockReader, stages: Stages) -> PrefillDone:
        """Follows P's announcements and reads along, until all is announced and in place."""
        try:
            async with asyncio.TaskGroup() as reads:
                done = await self._follow(announced, reader, reads)
                stages.end("wait_ready")
                if announced.plan.finish_reason(done.first_token.token_id) is not None:
                    reader.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        stages.end("transfer")
        return done

    async def _follow(self, announced: Announcements, reader: BlockReader, reads: asyncio.TaskGroup) -> PrefillDone:
        """Opens the session, again after each break or gap, until these bring nothing new for `silent_peer_s`."""
        clock = asyncio.get_running_loop().time
        failing_since: float | None = None
        delay_s = FIRST_BACKOFF_S
        while True:
            opened_at, num_known = clock(), len(announced.refs)
            done = await self._read_stream(announced, reader, reads)
            if done is not None:
                return done
            lived_s = clock() - opened_at
            if failing_since is None or len(announced.refs) > num_known or lived_s > self._config.silent_peer_s:
                failing_since, delay_s = clock(), FIRST_BACKOFF_S
            if clock() - failing_since >= self._config.silent_peer_s:
                detail = f"{self._link.incarnation} could not be followed for {self._config.silent_peer_s:g} s"
                raise HandoffError(FailureReason.PEER_SILENT, detail)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_BACKOFF_S)

    async def _read_stream(
        self, announced: Announcements, reader: BlockReader, reads: asyncio.TaskGroup
    ) -> PrefillDone | None:
        """None when the stream broke or left something out."""
        announced.restart()
        try:
            async with aclosing(self._link.peer.open(self._ticket, announced.plan.have_tokens)) as events:
                async for event in events:
                    self._link.heard()
                    if isinstance(event, SessionEnded):
                        raise HandoffError(event.reason, event.detail)
                    done = event if isinstance(event, PrefillDone) else None
                    chunk = event.tail if isinstance(event, PrefillDone) else event
                    if announced.has_gap_before(chunk):
                        return None
                    if done is not None:
                        announced.check_done(done)
                    new = announced.take(chunk)
                    ends = announced.plan.one_token_left or (
                        done is not None and announced.plan.finish_reason(done.first_token.token_id) is not None
                    )
                    if not ends:
                        self._read(reader, reads, new, announced.plan)
                    if done is not None:
                        return done
        except PeerUnavailable as error:
            logger.info("session %s: the stream from %s broke: %s", self._ticket, self._link.incarnation, error)
        return None

    def _read(self, reader: BlockReader, reads: asyncio.TaskGroup, new: Sequence[Readable], plan: Plan) -> None:
        for piece in new:
            part = layer_part(piece.layers, plan.num_layers, self._ring.block_bytes)
            reader.start(reads, piece.blocks, piece.first, part)

    async def _commit(self, announced: Announcements, reader: BlockReader, transport: str) -> None:
        """Asks for the verdict, again when the answer is lost: P gives the same one."""
        announced.check_complete()
        num_bytes = announced.plan.num_blocks * self._ring.block_bytes
        if reader.num_bytes != num_bytes:
            detail = f"{reader.num_bytes} of {num_bytes} bytes are in place"
            raise HandoffError(FailureReason.INTERNAL, detail)
        try:
            async with asyncio.timeout(self._config.verdict_timeout_s):
                verdict = await self._ask(announced, transport)
        except TimeoutError:
            detail = f"{self._link.incarnation} gave no verdict in {self._config.verdict_timeout_s:g} s"
            raise HandoffError(FailureReason.VERDICT_TIMEOUT, detail) from None
        if verdict is not Verdict.VALID:
            raise HandoffError(FailureReason.STALE, f"{self._link.incarnation} no longer holds what was read")

    async def _ask(self, announced: Announcements, transport: str) -> Verdict:
        while True:
            with suppress(PeerUnavailable, TimeoutError):
                async with asyncio.timeout(self._config.verdict_timeout_s / VERDICT_TRIES):
                    return await self._link.peer.commit(self._ticket, announced.refs, transport)
            await asyncio.sleep(FIRST_BACKOFF_S)


async def unless(lost: asyncio.Future[HandoffError], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or the error in `lost` if that comes first; then the work is cancelled and over."""
    task = asyncio.ensure_future(work)
    either: list[asyncio.Future[Any]] = [task, lost]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise lost.result()
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # it may fail while it ends, and that is seen
