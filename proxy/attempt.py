"""One attempt at a request: its workers, what they are told, and which of them still have to do with it.

Only the lifecycle makes attempts, numbered in order; one that was left stays as the record of its route.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.event_buffer import Route
from proxy.job import Job
from proxy.placement import Placement
from proxy.worker_link import Listener, WorkerLink
from rpc import worker_pb2


class Attempt:
    """Maintains `prefill` and `decode`: each its worker's link for as long as the attempt runs there."""

    def __init__(self, job: Job, number: int, placement: Placement) -> None:
        self.number = number
        self.prefill: WorkerLink | None = placement.prefill
        self.decode: WorkerLink | None = placement.decode
        self._job = job
        self._placement = placement

    @property
    def route(self) -> Route:
        prefill, decode = self._placement.prefill, self._placement.decode
        return Route("p2p" if prefill else "local", decode.worker, prefill.worker if prefill else None)

    def start(self, accepted: Sequence[int], now: float, listener: Listener) -> None:
        """Tells the workers; `accepted`: the tokens of the completion that count already."""
        request = self._job.request(accepted, now)
        prefill, decode = self._placement.prefill, self._placement.decode
        start = worker_pb2.StartDecode(request=request, attempt=self.number, role_epoch=decode.role_epoch)
        if prefill is not None:
            ticket = self._job.ticket(self.number)
            start.source.ticket.CopyFrom(ticket)
            start.source.address = prefill.member.address
            start.source.incarnation = prefill.incarnation
            start.source.transport = self._placement.transport or ""
            prefill.start(
                worker_pb2.StartPrefill(request=request, ticket=ticket, role_epoch=prefill.role_epoch), listener
            )
        decode.start(start, listener)

    def runs_on(self, link: WorkerLink) -> bool:
        return link in (self.prefill, self.decode)

    def prompt_computed(self) -> None:
        """The prefill worker is done; the decode worker has not spoken yet."""
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
