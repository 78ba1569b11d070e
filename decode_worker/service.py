"""The decode service: takes a prompt's KV over from a peer or out of the pool, computes what is missing, and generates.

Each attempt is one task that holds everything it needs and lets go of everything when it ends, however it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict

from decode_worker.attempt import Attempt, EventStream
from decode_worker.peers import PeerDirectory
from engine.engine import Engine, StepResult
from engine.engine_thread import EngineThread
from engine.errors import EngineStopped, RequestInvalid
from engine.request import Request, RequestKind
from engine.scheduler import TokenOutput
from kv_transfer.config import TransferConfig
from kv_transfer.handoff import HandoffResult
from kv_transfer.messages import FailureReason, HandoffError, Ticket
from kv_transfer.metrics import TransferMetrics
from kv_transfer.pool_client import PoolClient
from kv_transfer.pool_reader import PoolRead
from kv_transfer.pool_ring import PoolMember
from rpc import worker_pb2
from telemetry.tracer import Tracer

logger = logging.getLogger(__name__)


class DecodeService:
    """Maintains one `Attempt` per request; a higher attempt ends the lower, and an attempt that ended holds nothing."""

    def __init__(
        self,
        engine: EngineThread,
        peers: PeerDirectory,
        config: TransferConfig,
        make_request: Callable[[worker_pb2.TokenRequest, int, RequestKind], Request],
        admits: Callable[[int], worker_pb2.FailureCode | None],
        metrics: TransferMetrics,
        pool: PoolClient,
        tracer: Tracer | None = None,
    ) -> None:
        self._engine = engine
        self._peers = peers
        self._config = config
        self._make_request = make_request  # of an attempt; raises RequestInvalid
        self._admits = admits  # of a role epoch: None, or why not
        self._metrics = metrics
        self._pool = pool
        self._tracer = tracer
        self._attempts: dict[tuple[EventStream, str], Attempt] = {}  # by request id, which is unique in its stream
        self._by_engine_id: dict[str, Attempt] = {}
        self._loop = asyncio.get_running_loop()
        engine.subscribe(self._on_step)

    @property
    def num_open(self) -> int:
        return len(self._attempts)

    def start(self, command: worker_pb2.StartDecode, stream: EventStream) -> None:
        request_id, number = command.request.request_id, command.attempt
        refusal = self._admits(command.role_epoch)
        if refusal is not None:
            stream.send(failed=self._failure(request_id, number, refusal, worker_pb2.FailureCode.Name(refusal)))
            return
        known = self._attempts.get((stream, request_id))
        if known is not None and known.number >= number:
            return
        if known is not None:
            self._cancel(known, FailureReason.SUPERSEDED)
        source = command.source if command.HasField("source") else None
        try:
            request = self._make_request(command.request, number, RequestKind.GENERATE)
            members = tuple(PoolMember(m.name, m.incarnation, m.address) for m in command.pool.members)
            reads = members if source is None and command.pool.reads else ()
            request.awaits_kv = source is not None or bool(reads)
        except RequestInvalid as error:
            stream.send(failed=self._failure(request_id, number, worker_pb2.FAILURE_INVALID, str(error)))
            return
        reserved, ended, traceparent = (
            self._loop.create_future(),
            self._loop.create_future(),
            command.request.traceparent,
        )
        attempt = Attempt(request_id, number, request, stream, reserved, ended, traceparent)
        self._attempts[stream, request_id] = attempt
        self._by_engine_id[request.request_id] = attempt
        if command.pool.writes_back:
            attempt.writes_back = members
        attempt.task = self._loop.create_task(self._run(attempt, source, reads, command.request.timeout_s))

    def abort(self, request_id: str, attempt: int, stream: EventStream) -> None:
        known = self._attempts.get((stream, request_id))
        if known is not None and known.number <= attempt:
            self._cancel(known)

    def end_stream(self, stream: EventStream) -> None:
        for attempt in [a for a in self._attempts.values() if a.stream is stream]:
            self._cancel(attempt)

    async def wait_idle(self) -> None:
        while self._attempts:
            await asyncio.wait([a.task for a in self._attempts.values() if a.task is not None])

    def give_up_all(self, reason: str) -> int:
        """Ends every attempt and says so, so that the proxy takes it elsewhere; how many there were."""
        attempts = list(self._attempts.values())
        for attempt in attempts:
            self._cancel(attempt)
            code = worker_pb2.FAILURE_DRAINING
            attempt.stream.send(failed=self._failure(attempt.request_id, attempt.number, code, reason))
        return len(attempts)

    async def _run(
        self,
        attempt: Attempt,
        source: worker_pb2.KVSource | None,
        reads: Sequence[PoolMember],
        timeout_s: float,
    ) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                if source is not None:
                    await self._receive(attempt, source, self._loop.time() + timeout_s)
                elif reads:
                    await self._read_pool(attempt, reads)
                else:
                    await self._add(attempt.request)
                failure = await attempt.ended
            if failure is not None:
                self._fail(attempt, *failure)
        except TimeoutError:
            self._fail(attempt, worker_pb2.FAILURE_DEADLINE, f"the request's deadline ({timeout_s:g} s) has passed")
        except HandoffError as error:
            logger.warning("request %s attempt %d: %s", attempt.request_id, attempt.number, error)
            self._metrics.failed(error.reason)
            attempt.failed(error.reason, self._loop.time())
            self._trace(attempt)
            failed = worker_pb2.HandoffFailed(
                request_id=attempt.request_id, attempt=attempt.number, reason=error.reason, detail=error.detail
            )
            self._end(attempt)
            attempt.stream.send(handoff_failed=failed)
        except RequestInvalid as error:
            self._fail(attempt, worker_pb2.FAILURE_INVALID, str(error))
        except EngineStopped as error:
            self._fail(attempt, worker_pb2.FAILURE_DRAINING, str(error))
        except Exception as error:
            logger.exception("request %s attempt %d", attempt.request_id, attempt.number)
            self._fail(attempt, worker_pb2.FAILURE_INTERNAL, f"{type(error).__name__}: {error}")
        finally:
            self._end(attempt)

    async def _add(self, request: Request) -> None:
        """A grammar is compiled before, so that no step waits for that. Raises RequestInvalid."""
        if request.sampling.grammar:
            await asyncio.wrap_future(self._engine.engine.grammars.prepare(request.sampling.grammar))
        await asyncio.wrap_future(self._engine.call(lambda engine: engine.add(request)))

    async def _receive(self, attempt: Attempt, source: worker_pb2.KVSource, deadline: float) -> None:
        """Reserves the blocks, has the peer's KV read into them, and lets the request run once the peer says Valid."""
        request = attempt.request
        attempt.receiving = True
        started_at = self._loop.time()
        await self._add(request)
        try:
            async with asyncio.timeout(self._config.reserve_timeout_s):
                await attempt.reserved
        except TimeoutError:
            detail = f"no {len(request.token_ids)} tokens of KV blocks came free within reserve_timeout_s"
            raise HandoffError(FailureReason.RESERVE_TIMEOUT, detail) from None
        self._metrics.stage("reserve", self._loop.time() - started_at)
        ticket = Ticket(bytes(source.ticket.session), source.ticket.attempt)
        result = await self._peers.receive(source, ticket, request, deadline)
        attempt.receiving = False
        attempt.received(result, self._loop.time())
        attempt.origin = _received_origin(request, result)
        if result.finish_reason is not None:  # the first token ends it: no KV is needed, none was taken over
            first = result.first_token
            token = TokenOutput(
                request.request_id, request.first_index, first.token_id, result.finish_reason, first.logprobs
            )
            self._deliver([token])
        else:
            await asyncio.wrap_future(self._engine.call(lambda engine: self._accept(engine, request, result)))

    async def _read_pool(self, attempt: Attempt, members: Sequence[PoolMember]) -> None:
        """Reserves the blocks, has what the pool has of the prompt read into them, and lets the request run."""
        request = attempt.request
        await self._add(request)
        await attempt.reserved  # nobody waits for this one, so it may wait as long as it has
        read = await self._pool.reader.read(request, members)
        self._metrics.read_from_pool(read)
        attempt.read_pool(read, self._loop.time())
        attempt.origin = _pooled_origin(request, read)
        accepted = self._engine.call(lambda engine: engine.accept_prefix(request.request_id, read.num_tokens))
        await asyncio.wrap_future(accepted)

    def _accept(self, engine: Engine, request: Request, result: HandoffResult) -> None:
        """In the engine thread, so that the first token is delivered before any that a step makes from it."""
        output = engine.accept(request.request_id, result.first_token)
        self._loop.call_soon_threadsafe(self._deliver, [output])

    def _on_step(self, result: StepResult) -> None:
        if result.tokens or result.reserved or result.failed or result.unsampled:
            self._loop.call_soon_threadsafe(self._after_step, result)

    def _after_step(self, result: StepResult) -> None:
        for request in result.reserved:
            attempt = self._by_engine_id.get(request.request_id)
            if attempt is not None and not attempt.reserved.done():
                attempt.reserved.set_result(None)
        self._deliver(result.tokens)
        for engine_id, message in result.failed:
            self._end_with(engine_id, worker_pb2.FAILURE_INTERNAL, message)
        for engine_id, message in result.unsampled:
            self._end_with(engine_id, worker_pb2.FAILURE_UNSAMPLED, message)

    def _end_with(self, engine_id: str, code: worker_pb2.FailureCode, message: str) -> None:
        attempt = self._by_engine_id.get(engine_id)
        if attempt is not None and not attempt.ended.done():
            attempt.ended.set_result((code, message))

    def _deliver(self, outputs: Sequence[TokenOutput]) -> None:
        """One message for each stream with all its requests' tokens of this step."""
        messages: dict[EventStream, worker_pb2.StepTokens] = {}
        for output in outputs:
            attempt = self._by_engine_id.get(output.request_id)
            if attempt is None:
                continue
            tokens = messages.setdefault(attempt.stream, worker_pb2.StepTokens()).requests.add(
                request_id=attempt.request_id,
                attempt=attempt.number,
                index=output.index,
                ids=[output.token_id],
                finish_reason=output.finish_reason or "",
                logprobs=[] if output.logprobs is None else [worker_pb2.TokenLogprobs(**asdict(output.logprobs))],
            )
            if output.index == attempt.request.first_index:
                tokens.origin.CopyFrom(attempt.origin or _computed_origin(attempt.request))
                for stage in attempt.spoke(self._loop.time()):
                    tokens.origin.stages.add(name=stage.name, duration_s=stage.duration_s)
                self._trace(attempt)
            if output.finish_reason is not None and not attempt.ended.done():
                attempt.ended.set_result(None)
        for stream, message in messages.items():
            stream.send(tokens=message)

    def _trace(self, attempt: Attempt) -> None:
        if self._tracer is not None:
            self._tracer.record(attempt.traceparent, attempt.stages)

    def _fail(self, attempt: Attempt, code: worker_pb2.FailureCode, message: str) -> None:
        self._end(attempt)
        attempt.stream.send(failed=self._failure(attempt.request_id, attempt.number, code, message))

    @staticmethod
    def _failure(request_id: str, attempt: int, code: worker_pb2.FailureCode, message: str) -> worker_pb2.RequestFailed:
        return worker_pb2.RequestFailed(request_id=request_id, attempt=attempt, code=code, message=message)

    def _cancel(self, attempt: Attempt, reason: FailureReason = FailureReason.ABORTED) -> None:
        if attempt.receiving:
            self._metrics.failed(reason)
        self._end(attempt)
        if attempt.task is not None:
            attempt.task.cancel()

    def _end(self, attempt: Attempt) -> None:
        """Lets go of the engine's part. Idempotent; never waits, so that a cancelled task can call it."""
        if self._by_engine_id.pop(attempt.request.request_id, None) is not None:
            self._engine.tell(lambda engine: engine.abort(attempt.request.request_id))
            if attempt.writes_back:
                self._pool.writer.write_back(attempt.request, attempt.writes_back)
        key = (attempt.stream, attempt.request_id)
        if self._attempts.get(key) is attempt:
            del self._attempts[key]


def _received_origin(request: Request, result: HandoffResult) -> worker_pb2.Origin:
    return worker_pb2.Origin(
        cached_tokens=request.num_cached,
        received_tokens=result.received_tokens,
        prefill_cached_tokens=max(0, result.prefill_cached_tokens - request.num_cached),
    )


def _pooled_origin(request: Request, read: PoolRead) -> worker_pb2.Origin:
    return worker_pb2.Origin(
        cached_tokens=request.num_cached,
        received_tokens=read.num_received,
        computed_tokens=request.num_prompt + request.first_index - read.num_tokens,
        prefill_cached_tokens=read.num_received,
    )


def _computed_origin(request: Request) -> worker_pb2.Origin:
    return worker_pb2.Origin(
        cached_tokens=request.num_cached, computed_tokens=request.num_prompt + request.first_index - request.num_cached
    )
