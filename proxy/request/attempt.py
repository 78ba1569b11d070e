"""One attempt at a request: its workers, what they are told, and which of them still have to do with it.

Only the lifecycle makes attempts, numbered in order; one that was left stays as the record of its route.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from proxy.request.event_buffer import Route
from proxy.request.job import Job
from proxy.request.kv_mode import KvMode
from proxy.routing.placement import Placement
from proxy.routing.transport_choice import Path
from proxy.workers.worker_link import Listener, WorkerLink
from rpc import worker_pb2

FOR_WANT_OF_PREFILL = ("no_prefill_worker", "prefill_overloaded", "handoff_failed")  # reasons of a local prefill


class Attempt:
    """Maintains `prefill` and `decode`: each its worker's link for as long as the attempt runs there."""

    def __init__(self, job: Job, number: int, placement: Placement) -> None:
        self.number = number
        self.prefill: WorkerLink | None = placement.prefill
        self.decode: WorkerLink | None = placement.decode
        self.computed_at: float | None = None  # the prompt, by the prefill worker
        self._job = job
        self._placement = placement

    @property
    def is_pooled(self) -> bool:
        return bool(self._placement.nodes) and self._job.kv_mode is KvMode.POOLED

    @property
    def is_for_prefill(self) -> bool:
        """Whether the prompt is a prefill worker's work: it has one, or would have one if there were room."""
        return self._placement.prefill is not None or self._placement.local_reason in FOR_WANT_OF_PREFILL

    @property
    def route(self) -> Route:
        prefill, decode = self._placement.prefill, self._placement.decode
        path = KvMode.POOLED if self.is_pooled else KvMode.P2P if prefill else KvMode.LOCAL
        return Route(path, decode.worker if decode else None, prefill.worker if prefill else None)

    @property
    def path(self) -> Path | None:
        """Of the prompt's KV; None when the decode worker computes the prompt."""
        prefill, decode, transport = self._placement.prefill, self._placement.decode, self._placement.transport
        if prefill is None or decode is None or transport is None:
            return None
        return Path(prefill.incarnation, decode.incarnation, transport)

    def start(self, accepted: Sequence[int], now: float, listener: Listener) -> None:
        """Tells the workers; `accepted`: the tokens of the completion that count already."""
        request = self._job.request(accepted, now)
        if self.prefill is not None:
            start = worker_pb2.StartPrefill(
                request=request, ticket=self._job.ticket(self.number), role_epoch=self.prefill.role_epoch
            )
            if self.is_pooled:
                start.pool.CopyFrom(self._job.pool_use(self._placement.nodes))
            self.prefill.start(start, listener)
        if self.decode is not None:
            self._start_decode(self.decode, request, listener)

    def go_on(self, placement: Placement, accepted: Sequence[int], now: float, listener: Listener) -> None:
        """The prompt is in the pool, and here is who generates."""
        assert placement.decode is not None
        self._placement = replace(self._placement, decode=placement.decode, nodes=placement.nodes)
        self.decode = placement.decode
        self._start_decode(self.decode, self._job.request(accepted, now), listener)
        self.decode.tally.prompt_computed(self._job.wire_id)

    def _start_decode(self, decode: WorkerLink, request: worker_pb2.TokenRequest, listener: Listener) -> None:
        start = worker_pb2.StartDecode(request=request, attempt=self.number, role_epoch=decode.role_epoch)
        if self._placement.nodes:
            start.pool.CopyFrom(self._job.pool_use(self._placement.nodes))
        if self.prefill is not None:
            start.source.ticket.CopyFrom(self._job.ticket(self.number))
            start.source.address = self.prefill.member.address
            start.source.incarnation = self.prefill.incarnation
            start.source.transport = self._placement.transport or ""
        decode.start(start, listener)

    def runs_on(self, link: WorkerLink) -> bool:
        return link in (self.prefill, self.decode)

    def prompt_computed(self, now: float) -> None:
        """The prefill worker is done; the decode worker has not spoken yet."""
        self.computed_at = now
        if self.is_pooled:
            return
        if self.prefill is not None:
            self.prefill.tally.left_queue(self._job.wire_id)
        if self.decode is not None:
            self.decode.tally.prompt_computed(self._job.wire_id)

    def leave_prefill(self, *, aborts: bool, still_queued: bool) -> None:
        """The decode worker speaks: from now on nobody listens to the prefill worker.

        `aborts`: the KV may not have been read, and nobody else says so; `still_queued`: it was not `prompt_computed`.
        """
        prefill, self.prefill = self.prefill, None
        if prefill is None:
            return
        if still_queued:
            prefill.tally.left_queue(self._job.wire_id)
        if aborts:
            prefill.abort(self._job.wire_id, self.number)
        prefill.forget(self._job.wire_id)

    def blame_both(self) -> None:
        """The hand-off between the two failed, and either may be at fault: whose hand-offs all fail will stand out."""
        for link in (self.prefill, self.decode):
            if link is not None:
                link.breaker.failed()

    def decode_ended(self) -> None:
        """The decode worker ended the request by itself."""
        if self.decode is not None:
            self.decode.forget(self._job.wire_id)
        self.decode = None

    def leave(self) -> None:
        """Ends it wherever it still runs."""
        for link in (self.prefill, self.decode):
            if link is not None:
                link.abort(self._job.wire_id, self.number)
        self.prefill = self.decode = None
