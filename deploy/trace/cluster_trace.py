"""What all of a cluster's processes recorded, as one trace: proxies first, then prefill, then decode workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from deploy.trace.proxy_events import ProxyEvents
from deploy.trace.trace import Trace
from deploy.trace.worker_events import WorkerEvents
from rpc import observe_pb2, worker_pb2

ORDER = (worker_pb2.ROLE_UNSPECIFIED, worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE, worker_pb2.ROLE_MIXED)


@dataclass(slots=True)
class Recording:
    """What one process told: who it is, as it said first, and its records in order."""

    source: observe_pb2.Source
    records: list[observe_pb2.Records] = field(default_factory=list)


def cluster_trace(recordings: Sequence[Recording]) -> Trace:
    trace = Trace()
    workers: list[WorkerEvents] = []
    for recording in sorted(recordings, key=lambda one: (ORDER.index(one.source.role), one.source.name)):
        if recording.source.role == worker_pb2.ROLE_UNSPECIFIED:
            proxy = ProxyEvents(trace, recording.source)
            for records in recording.records:
                proxy.add(records)
            proxy.finish()
            continue
        worker = WorkerEvents(trace, recording.source)
        for records in recording.records:
            worker.add(records)
        worker.finish()
        workers.append(worker)
    _draw_arrows(trace, workers)
    return trace


def _draw_arrows(trace: Trace, workers: Sequence[WorkerEvents]) -> None:
    """From the last chunk of a prompt on P to the hand-off that took it over on D."""
    by_incarnation = {worker.source.incarnation: worker for worker in workers}
    for worker in workers:
        for attempt, incarnation, handoff in worker.received:
            peer = by_incarnation.get(incarnation)
            chunk = peer.last_chunks.get(attempt) if peer is not None else None
            if chunk is not None:
                trace.arrow(chunk, handoff, "hand-off")
