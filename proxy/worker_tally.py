"""How busy a worker is, as one proxy sees it: its last load report, corrected by what was sent and done since.

Pure; the link feeds it.
"""

from __future__ import annotations

from proxy.router import WorkerView
from rpc import worker_pb2


class WorkerTally:
    """Maintains what the last report cannot know yet."""

    def __init__(self) -> None:
        self._load: worker_pb2.Load | None = None
        self._refuses = False  # said so after its last report
        self._unseen: dict[str, int] = {}  # tokens of each request that was sent since the last report
        self._num_done = 0  # requests that got past waiting since then
        self._untransferred: set[str] = set()

    @property
    def is_admitting(self) -> bool:
        return self._load is not None and self._load.admitting and not self._refuses

    @property
    def num_untransferred(self) -> int:
        """Requests whose prompt is computed elsewhere and whose KV this decode worker has not taken over yet."""
        return len(self._untransferred)

    def view(self, worker: str, num_known: int) -> WorkerView:
        """`num_known`: requests that this proxy has there."""
        load = self._load or worker_pb2.Load()
        num_waiting = max(0, load.num_waiting + len(self._unseen) - self._num_done)
        return WorkerView(
            worker=worker,
            num_waiting=num_waiting,
            num_requests=max(num_known, load.num_running + num_waiting),
            num_queued_tokens=load.num_queued_tokens + sum(self._unseen.values()),
        )

    def reported(self, load: worker_pb2.Load) -> None:
        self._load = load
        self._refuses = False
        self._unseen.clear()
        self._num_done = 0

    def refused(self) -> None:
        """It admits nothing, until its next report says otherwise."""
        self._refuses = True

    def sent(self, request: worker_pb2.TokenRequest) -> None:
        self._unseen[request.request_id] = len(request.prompt_ids) + len(request.output_ids)

    def prompt_computed(self, request_id: str) -> None:
        """The request's prefill worker is done: now it is up to this decode worker."""
        self._untransferred.add(request_id)

    def left_queue(self, request_id: str) -> None:
        """The request no longer waits: it was prefilled, or speaks."""
        self._untransferred.discard(request_id)
        if self._unseen.pop(request_id, None) is None:
            self._num_done += 1

    def forget(self, request_id: str) -> None:
        self._unseen.pop(request_id, None)
        self._untransferred.discard(request_id)
