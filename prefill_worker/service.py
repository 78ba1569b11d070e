"""The prefill service: computes prompts that proxies send and keeps their KV until a decode worker has read it, or puts
it into the pool.

What a session may do is `LeaseTable`'s to say, in the engine thread; here each is tied to the proxy that began it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from engine.engine import StepResult
from engine.engine_thread import EngineThread
from engine.errors import EngineError, EngineStopped, RequestInvalid
from engine.request import Request, RequestKind, RequestState
from kv_transfer.lease import LeaseTable
from kv_transfer.messages import HandoffError, Ticket
from kv_transfer.metrics import TransferMetrics
from kv_transfer.pool_client import PoolClient
from kv_transfer.pool_ring import PoolMember
from prefill_worker.pooled_prompt import PooledPrompt
from prefill_worker.prompt_stages import prompt_stages
from rpc import worker_pb2
from telemetry.tracer import Tracer

logger = logging.getLogger(__name__)


class EventStream(Protocol):
    """Where a prompt's events go: the stream of the proxy that asked. A fake one serves tests."""

    def send(self, **event: Any) -> None: ...


@dataclass(slots=True, eq=False)
class Prompt:
    """One attempt at one request, from its start until its session has ended."""

    request_id: str
    ticket: Ticket
    request: Request
    stream: EventStream
    deadline: asyncio.TimerHandle
    traceparent: str = ""
    pooled: PooledPrompt | None = None  # None: a peer to peer hand-off, which lives in the `LeaseTable`
    task: asyncio.Task[None] | None = None  # of a pooled one


class PrefillService:
    """Maintains one `Prompt` per live attempt; a higher one ends the lower, and a session that ended holds nothing."""

    def __init__(
        self,
        engine: EngineThread,
        leases: LeaseTable,
        make_request: Callable[[worker_pb2.TokenRequest, int, RequestKind], Request],
        admits: Callable[[int], worker_pb2.FailureCode | None],
        pool: PoolClient,
        metrics: TransferMetrics,
        tracer: Tracer | None = None,
    ) -> None:
        self._engine = engine
        self._leases = leases
        self._make_request = make_request  # of an attempt; raises RequestInvalid
        self._admits = admits  # of a role epoch: None, or why not
        self._pool = pool
        self._metrics = metrics
        self._tracer = tracer
        self._prompts: dict[Ticket, Prompt] = {}
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        engine.subscribe(self._on_step)

    @property
    def num_open(self) -> int:
        return len(self._prompts)

    def start(self, command: worker_pb2.StartPrefill, stream: EventStream) -> None:
        request_id = command.request.request_id
        ticket = Ticket(bytes(command.ticket.session), command.ticket.attempt)
        if ticket in self._prompts:
            return  # told twice
        refusal = self._admits(command.role_epoch)
        if refusal is not None:
            _send_failure(stream, request_id, ticket.attempt, refusal, "this worker takes no prompts")
            return
        try:
            request = self._make_request(command.request, ticket.attempt, RequestKind.PREFILL)
        except RequestInvalid as error:
            _send_failure(stream, request_id, ticket.attempt, worker_pb2.FAILURE_INVALID, str(error))
            return
        for lower in [p for p in self._prompts.values() if p.ticket.session == ticket.session]:
            if lower.task is not None:
                lower.task.cancel()
            self._forget(lower)  # its session ends as this one begins, if it is lower; else this one is refused
        deadline = self._loop.call_later(command.request.timeout_s, self._time_out, ticket)
        prompt = self._prompts[ticket] = Prompt(
            request_id, ticket, request, stream, deadline, command.request.traceparent
        )
        self._idle.clear()
        if command.HasField("pool"):
            members = [PoolMember(m.name, m.incarnation, m.address) for m in command.pool.members]
            prompt.pooled = PooledPrompt(request, members, self._engine, self._pool, self._metrics.read_from_pool)
            prompt.task = self._loop.create_task(self._run_pooled(prompt, prompt.pooled))
        elif request.sampling.grammar:  # compiled before it is queued, so that no step waits for that
            prepared = asyncio.wrap_future(self._engine.engine.grammars.prepare(request.sampling.grammar))
            prepared.add_done_callback(lambda future: self._after_prepared(prompt, future))
        else:
            self._queue(prompt)

    def abort(self, request_id: str, attempt: int, stream: EventStream) -> None:
        for prompt in list(self._prompts.values()):
            if prompt.request_id == request_id and prompt.stream is stream and prompt.ticket.attempt <= attempt:
                self._abort(prompt)

    def end_stream(self, stream: EventStream) -> None:
        for prompt in [p for p in self._prompts.values() if p.stream is stream]:
            self._abort(prompt)

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def give_up_all(self, reason: str) -> int:
        """Ends every prompt and says so, so that the proxy takes it elsewhere; how many there were."""
        prompts = list(self._prompts.values())
        for prompt in prompts:
            self._fail(prompt, worker_pb2.FAILURE_DRAINING, reason)
        return len(prompts)

    def _after_prepared(self, prompt: Prompt, prepared: asyncio.Future[None]) -> None:
        if prepared.exception() is not None:
            self._check_queued(prompt, prepared)
        elif self._prompts.get(prompt.ticket) is prompt:
            self._queue(prompt)

    async def _run_pooled(self, prompt: Prompt, pooled: PooledPrompt) -> None:
        try:
            prefill = await pooled.run()
        except Exception as error:  # noqa: BLE001  whatever it is, this prompt only fails, and the proxy hears of it
            self._fail_with(prompt, error)
        else:
            prompt.stream.send(
                done=worker_pb2.PrefillProgress(
                    request_id=prompt.request_id,
                    attempt=prompt.ticket.attempt,
                    cached_tokens=prefill.cached_tokens,
                    computed_tokens=prefill.computed_tokens,
                    stages=self._stages(prompt, monotonic()),
                )
            )
            self._forget(prompt)

    def _queue(self, prompt: Prompt) -> None:
        queued = self._engine.call(lambda engine: self._leases.prefill(prompt.request, prompt.ticket, monotonic()))
        asyncio.wrap_future(queued).add_done_callback(lambda future: self._check_queued(prompt, future))

    def _check_queued(self, prompt: Prompt, queued: asyncio.Future[None]) -> None:
        if (error := queued.exception()) is not None:
            self._fail_with(prompt, error)

    def _fail_with(self, prompt: Prompt, error: BaseException) -> None:
        match error:
            case RequestInvalid():
                code = worker_pb2.FAILURE_INVALID
            case EngineStopped():
                code = worker_pb2.FAILURE_DRAINING
            case _:
                code = worker_pb2.FAILURE_INTERNAL
        if not isinstance(error, EngineError | HandoffError):
            logger.error("request %s attempt %d", prompt.request_id, prompt.ticket.attempt, exc_info=error)
        self._fail(prompt, code, str(error))

    def _on_step(self, result: StepResult) -> None:
        """In the engine thread, after the leases have advanced."""
        if self._prompts:
            self._loop.call_soon_threadsafe(self._after_step, result)

    def _after_step(self, result: StepResult) -> None:
        prompts = {prompt.request.request_id: prompt for prompt in self._prompts.values()}
        for engine_id, message in result.failed:
            if engine_id in prompts:
                self._fail(prompts[engine_id], worker_pb2.FAILURE_INTERNAL, message)
        for engine_id, message in result.unsampled:
            if engine_id in prompts:
                self._fail(prompts[engine_id], worker_pb2.FAILURE_UNSAMPLED, message)
        for output in result.tokens:
            prompt = prompts.get(output.request_id)
            if prompt is not None and prompt.pooled is None and prompt.ticket in self._prompts:
                stages = self._stages(prompt, result.started_at + result.duration_s)
                prompt.stream.send(done=_progress(prompt, stages))
        for prompt in prompts.values():
            if prompt.pooled is not None:
                prompt.pooled.on_step(result)
            elif prompt.request.state is RequestState.FINISHED:
                self._forget(prompt)

    def _stages(self, prompt: Prompt, computed_at: float) -> list[worker_pb2.StageTime]:
        """For the proxy; and for the prompt's trace, where it has one."""
        stages = prompt_stages(prompt.request, prompt.ticket.attempt, computed_at)
        if self._tracer is not None:
            self._tracer.record(prompt.traceparent, stages)
        return [worker_pb2.StageTime(name=stage.name, duration_s=stage.duration_s) for stage in stages]

    def _time_out(self, ticket: Ticket) -> None:
        if (prompt := self._prompts.get(ticket)) is not None:
            self._fail(prompt, worker_pb2.FAILURE_DEADLINE, "the request's deadline has passed")

    def _fail(self, prompt: Prompt, code: worker_pb2.FailureCode, message: str) -> None:
        """Once at most for each prompt."""
        if self._prompts.get(prompt.ticket) is prompt:
            self._abort(prompt)
            _send_failure(prompt.stream, prompt.request_id, prompt.ticket.attempt, code, message)

    def _abort(self, prompt: Prompt) -> None:
        if prompt.task is not None:
            prompt.task.cancel()
        else:
            self._engine.tell(lambda engine: self._leases.abort(prompt.ticket, monotonic()))
        self._forget(prompt)

    def _forget(self, prompt: Prompt) -> None:
        prompt.deadline.cancel()
        if self._prompts.get(prompt.ticket) is prompt:
            del self._prompts[prompt.ticket]
        if not self._prompts:
            self._idle.set()


def _progress(prompt: Prompt, stages: Sequence[worker_pb2.StageTime]) -> worker_pb2.PrefillProgress:
    num_prompt = prompt.request.num_prompt + prompt.request.first_index
    cached = prompt.request.num_cached
    return worker_pb2.PrefillProgress(
        request_id=prompt.request_id,
        attempt=prompt.ticket.attempt,
        cached_tokens=cached,
        computed_tokens=num_prompt - cached,
        stages=stages,
    )


def _send_failure(
    stream: EventStream, request_id: str, attempt: int, code: worker_pb2.FailureCode, message: str
) -> None:
    stream.send(failed=worker_pb2.RequestFailed(request_id=request_id, attempt=attempt, code=code, message=message))
