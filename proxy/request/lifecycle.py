"""One choice of a request, from admission to its end: a small state machine, and the only place that tries again.

It accepts tokens of the current attempt at the next index only, so nothing is said twice, whoever wakes up late. All
attempts share one budget and the request's deadline; a request that was at three workers when they died is not tried
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum

from proxy.config import ProxyConfig
from proxy.errors import ApiError, ErrorCode
from proxy.metrics import ProxyMetrics
from proxy.request.attempt import Attempt
from proxy.request.event_buffer import EventBuffer, FinishedEvent, Route, SlowClient, Timings, TokenEvent
from proxy.request.job import Job
from proxy.request.progress import Progress
from proxy.request.retry_budget import BudgetSpent, RetryBudget
from proxy.request.stages import Stages
from proxy.routing.dispatcher import MAX_DEATHS, Dispatcher
from proxy.routing.placement import Constraints, NotPlaced, Placement, Waiter
from proxy.routing.transport_choice import choose_path
from proxy.text.text_output import Piece, TextOutput
from proxy.workers.worker_link import LinkEvent, LinkLost, WorkerLink
from rpc import worker_pb2

DECODE_WORKER_IS_FULL = ("reserve_timeout", "staging_timeout")  # reasons of a hand-off that another P would not help
TRANSPORT_FAILED = ("transfer_failed", "transfer_timeout", "handshake_timeout")  # another transport might do
logger = logging.getLogger(__name__)


class Phase(StrEnum):
    QUEUED = "queued"  # waits for workers, at first or again
    PREFILLING = "prefilling"
    TRANSFERRING = "transferring"  # the prefill worker is done, the decode worker has not spoken yet
    DECODING = "decoding"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_end(self) -> bool:
        return self in (Phase.FINISHED, Phase.FAILED, Phase.CANCELLED)


class Lifecycle:
    """Maintains which workers work on the request, what they said that counts, and how it ended."""

    def __init__(
        self,
        job: Job,
        output: TextOutput,
        events: EventBuffer,
        config: ProxyConfig,
        dispatcher: Dispatcher,
        metrics: ProxyMetrics,
        on_end: Callable[[Lifecycle], None],
    ) -> None:
        self.job = job
        self.phase = Phase.QUEUED
        self.events = events  # those of the request's other choices too
        self.error: ApiError | None = None
        self.progress = Progress(job, metrics)
        self.stages = Stages(job)
        self._output = output
        self._config = config
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._budget = RetryBudget(config.max_attempts, config.max_handoff_attempts)
        self._attempt: Attempt | None = None  # the newest
        self._waiter: Waiter | None = None
        self._deadline = self._loop.call_at(job.deadline_at, self._on_deadline)

    @property
    def num_attempts(self) -> int:
        return self._budget.num_attempts

    @property
    def route(self) -> Route | None:
        """The workers of the newest attempt, the current one or the last; None while no attempt was made."""
        return None if self._attempt is None else self._attempt.route

    @property
    def transport(self) -> str | None:
        """That the newest attempt's KV comes over from its prefill worker."""
        path = None if self._attempt is None else self._attempt.path
        return None if path is None else path.transport

    @property
    def is_for_prefill(self) -> bool:
        """Whether the newest attempt's prompt is a prefill worker's work, by right."""
        return self._attempt is not None and self._attempt.is_for_prefill

    @property
    def timings(self) -> Timings:
        return self.progress.timings(self._loop.time())

    def submit(self) -> None:
        """Into the queue, where a place is reserved for it."""
        self._waiter = Waiter(self.job, Constraints(), self._place, self._not_placed)
        self._dispatcher.submit(self._waiter)

    def cancel(self, message: str = "the client went away") -> None:
        """Ends the request on all workers, in whatever phase. Does nothing when it has ended."""
        if not self.phase.is_end:
            self._metrics.cancelled.labels(self.phase.value).inc()
            self._end(Phase.CANCELLED, ApiError(ErrorCode.CANCELLED, message))

    def fail(self, error: ApiError) -> None:
        if not self.phase.is_end:
            self._end(Phase.FAILED, error)

    def _place(self, placement: Placement) -> None:
        self._waiter = None
        if self.num_attempts == 0:
            self.progress.dispatched(self._loop.time())
        self._budget.begin_attempt()
        attempt = self._attempt = Attempt(self.job, self.num_attempts, placement)
        self.phase = Phase.PREFILLING
        if placement.local_reason is not None:
            self._metrics.local_prefill.labels(placement.local_reason).inc()
        if self.progress.accepted:
            self._metrics.migrations.inc()
        attempt.start(self.progress.accepted, self._loop.time(), self._listen)
        self.stages.placed(placement, attempt.number, self._loop.time())

    def _listen(self, link: WorkerLink, event: LinkEvent) -> None:
        attempt = self._attempt
        if self.phase.is_end or attempt is None or not attempt.runs_on(link):
            return
        if not isinstance(event, LinkLost) and event.attempt != attempt.number:
            return
        try:
            self._take(attempt, link, event)
        except Exception:  # a fault here must cost this request only, not the link and all others on it
            logger.exception("request %s: fault in phase %s", self.job.request_id, self.phase.value)
            self.fail(ApiError(ErrorCode.INTERNAL, "a fault in the proxy; its log has the request id"))

    def _take(self, attempt: Attempt, link: WorkerLink, event: LinkEvent) -> None:
        match event:
            case worker_pb2.RequestTokens():
                self._take_tokens(attempt, link, event)
            case worker_pb2.PrefillProgress():
                self.stages.told(event.stages)
                if self.phase is Phase.PREFILLING:
                    self.phase = Phase.TRANSFERRING
                    self._take_prompt(attempt, event)
                link.breaker.succeeded()
                self._dispatcher.pump()
            case worker_pb2.HandoffFailed():
                is_full = event.reason in DECODE_WORKER_IS_FULL
                if event.reason in TRANSPORT_FAILED:
                    self._budget.path_failed(attempt.path)
                if not is_full:
                    attempt.blame_both()
                detail = f"{event.reason}: {event.detail}"
                self._handoff_failed(attempt, "transfer", event.reason, detail, decode_is_full=is_full)
            case worker_pb2.RequestFailed():
                self._take_refusal(attempt, link, event)
            case LinkLost():
                self._take_loss(attempt, link, event)

    def _take_prompt(self, attempt: Attempt, prefilled: worker_pb2.PrefillProgress) -> None:
        """It is computed. When it is in the pool, its prefill worker may go, and any decode worker may go on."""
        attempt.prompt_computed(self._loop.time())
        if not attempt.is_pooled:
            return
        self.progress.prefilled(prefilled)
        attempt.leave_prefill(aborts=False, still_queued=True)
        self.stages.waits(self._loop.time())
        self._waiter = Waiter(self.job, self._budget.decode_constraints(), self._go_on, self._not_placed)
        self._dispatcher.resubmit(self._waiter)

    def _go_on(self, placement: Placement) -> None:
        self._waiter = None
        assert self._attempt is not None
        self._attempt.go_on(placement, self.progress.accepted, self._loop.time(), self._listen)
        self.stages.placed(placement, self._attempt.number, self._loop.time())

    def _take_tokens(self, attempt: Attempt, link: WorkerLink, tokens: worker_pb2.RequestTokens) -> None:
        if tokens.index < len(self.progress.accepted) or link is not attempt.decode:
            return
        if tokens.index > len(self.progress.accepted) or tokens.finish_reason not in ("", "stop", "length"):
            link.breaker.failed()
            self._decode_failed(attempt, f"{link.worker} sent tokens that do not follow")
            return
        if self.job.sampling.HasField("num_logprobs") and len(tokens.logprobs) != len(tokens.ids):
            link.breaker.failed()
            self._decode_failed(attempt, f"{link.worker} sent tokens without the logprobs that were asked for")
            return
        if self.phase is not Phase.DECODING:
            self._start_decoding(attempt, link, tokens.origin, is_last=bool(tokens.finish_reason))
        piece = self._output.add(tokens.ids, tokens.finish_reason or None, tokens.logprobs)
        index = len(self.progress.accepted)
        self.progress.accept(piece.ids, self._loop.time())
        try:
            self.events.push(TokenEvent(index, piece.ids, piece.text, piece.logprobs, self.job.choice))
        except SlowClient:
            limit = self._config.max_buffered_tokens
            self.cancel(f"the client reads too slowly: over {limit} tokens (max_buffered_tokens) were waiting for it")
            return
        if piece.finish_reason is not None:
            self._finish(attempt, piece, worker_is_done=bool(tokens.finish_reason))

    def _start_decoding(self, attempt: Attempt, link: WorkerLink, origin: worker_pb2.Origin, *, is_last: bool) -> None:
        link.tally.left_queue(self.job.wire_id)
        link.breaker.succeeded()
        attempt.leave_prefill(aborts=is_last, still_queued=self.phase is Phase.PREFILLING)
        self.phase = Phase.DECODING
        self.stages.told(origin.stages)
        self.progress.decoding(origin, attempt.computed_at, self._loop.time())
        self._dispatcher.pump()

    def _take_refusal(self, attempt: Attempt, link: WorkerLink, failed: worker_pb2.RequestFailed) -> None:
        if failed.code in (worker_pb2.FAILURE_DRAINING, worker_pb2.FAILURE_ROLE_CHANGED):
            link.tally.refused()
            self._reroute(attempt, link, failed.message)
            return
        if failed.code == worker_pb2.FAILURE_UNSAMPLED:
            self.fail(ApiError(ErrorCode.INVALID_ARGUMENT, failed.message, reason="structured_output_failed"))
            return
        if failed.code == worker_pb2.FAILURE_INTERNAL:
            link.breaker.failed()
            self._budget.failed_inside()
        if link is attempt.prefill:
            is_for_good = failed.code == worker_pb2.FAILURE_INVALID
            self._handoff_failed(attempt, "prefill", "prefill_failed", failed.message, for_good=is_for_good)
        elif failed.code == worker_pb2.FAILURE_INVALID:
            self.fail(ApiError(ErrorCode.INVALID_ARGUMENT, failed.message, reason="context_length_exceeded"))
        elif failed.code == worker_pb2.FAILURE_DEADLINE:
            self._on_deadline()
        else:
            self._decode_failed(attempt, failed.message)

    def _reroute(self, attempt: Attempt, link: WorkerLink, reason: str) -> None:
        """A worker that leaves, or changes, hands the request back: nothing failed there."""
        self._budget.handed_back(link)
        is_prefill = link is attempt.prefill
        self._retry("prefill" if is_prefill else "decode", reason, keep=attempt.decode if is_prefill else None)

    def _take_loss(self, attempt: Attempt, link: WorkerLink, lost: LinkLost) -> None:
        self._budget.link_lost(link)
        if link is attempt.prefill:
            self._handoff_failed(attempt, "prefill", "prefill_lost", lost.reason)
        else:
            self._decode_failed(attempt, lost.reason)

    def _handoff_failed(
        self,
        attempt: Attempt,
        stage: str,
        reason: str,
        detail: str,
        *,
        for_good: bool = False,
        decode_is_full: bool = False,
    ) -> None:
        """The prompt's KV did not come: another path, another prefill worker, or at last the decode worker itself."""
        self._budget.handoff_failed(for_good=for_good)
        if self._has_other_path(attempt):
            self._retry(stage, detail, keep=attempt.decode, keep_prefill=attempt.prefill)
        else:
            self._budget.avoid(attempt.decode if decode_is_full else attempt.prefill)
            self._retry(stage, detail, keep=None if decode_is_full else attempt.decode)
        if not self.phase.is_end:
            self._metrics.fallback_recompute.labels(reason).inc()

    def _has_other_path(self, attempt: Attempt) -> bool:
        """Whether this attempt's path failed, and its workers have another one."""
        failed, prefill, decode = self._budget.failed_paths, attempt.prefill, attempt.decode
        if prefill is None or decode is None or attempt.path not in failed:
            return False
        return choose_path(prefill.member, decode.member, failed) not in failed

    def _decode_failed(self, attempt: Attempt, reason: str) -> None:
        """Another decode worker, or the same name's next incarnation, goes on after the last accepted token."""
        self._budget.avoid(attempt.decode)
        self._retry("decode", reason, keep=None)

    def _retry(
        self, stage: str, reason: str, *, keep: WorkerLink | None, keep_prefill: WorkerLink | None = None
    ) -> None:
        logger.info("request %s: attempt %d failed in %s: %s", self.job.request_id, self.num_attempts, stage, reason)
        self._leave_workers()
        try:
            constraints = self._budget.next_constraints(keep, keep_prefill)
        except BudgetSpent as spent:
            code = ErrorCode.ABORTED if self.progress.accepted else ErrorCode.UNAVAILABLE
            self._give_up(code, f"{spent}; the last failure, in {stage}: {reason}")
            return
        self._metrics.retries.labels(stage).inc()
        self.phase = Phase.QUEUED
        self.stages.waits(self._loop.time())
        self._waiter = Waiter(self.job, constraints, self._place, self._not_placed)
        self._dispatcher.resubmit(self._waiter, self._budget.rest_s)

    def _not_placed(self, why: NotPlaced) -> None:
        self._waiter = None
        match why:
            case NotPlaced.TOO_MANY_DEATHS:
                self._give_up(ErrorCode.ABORTED, f"the request was at {MAX_DEATHS} workers when they died")
            case NotPlaced.NO_WORKER:
                limit_s = self._config.recovery_timeout_s
                code = ErrorCode.ABORTED if self.progress.accepted else ErrorCode.UNAVAILABLE
                self._give_up(code, f"no decode worker came back within {limit_s:g} s")

    def _give_up(self, code: ErrorCode, message: str) -> None:
        self.fail(ApiError(code, message, reason="worker_lost"))

    def _finish(self, attempt: Attempt, piece: Piece, *, worker_is_done: bool) -> None:
        if worker_is_done:
            attempt.decode_ended()
        assert piece.finish_reason is not None
        usage, timings = self.progress.usage, self.timings
        self.events.push(FinishedEvent(piece.finish_reason, usage, timings, attempt.route, self.job.choice))
        self._end(Phase.FINISHED, None)

    def _end(self, phase: Phase, error: ApiError | None) -> None:
        self._leave_workers()
        if self._waiter is not None:
            self._dispatcher.withdraw(self._waiter)
            self._waiter = None
        self._deadline.cancel()
        self.progress.ended(self._loop.time())
        self.phase = phase
        if error is not None:
            self.error = error
            self.events.fail(error, drop=phase is Phase.CANCELLED)
        self._dispatcher.pump()
        self._on_end(self)

    def _leave_workers(self) -> None:
        if self._attempt is not None:
            self._attempt.leave()

    def _on_deadline(self) -> None:
        self.fail(
            ApiError(
                ErrorCode.DEADLINE_EXCEEDED,
                f"the deadline of {self.job.timeout_s:g} s passed; the request was {self.phase.value}",
            )
        )
