"""How busy a worker is, as one proxy sees it: its last load report, corrected by what was sent and done since.

Pure; the link feeds it. A batch request asks how full the worker is; an interactive one only how full of its like,
since it goes before the others there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from proxy.request.priority import is_batch
from proxy.routing.worker_view import WorkerView
from rpc import worker_pb2


@dataclass(frozen=True, slots=True)
class Sent:
    num_tokens: int
    is_batch: bool


class WorkerTally:
    """Maintains what the last report cannot know yet."""

    def __init__(self) -> None:
        self._load: worker_pb2.Load | None = None
        self._refuses = False  # said so after its last report
        self._sent: dict[str, Sent] = {}  # whose prompt is not computed yet, or, on a decode worker, that do not speak
        self._unseen: dict[str, int] = {}  # tokens of each request that was sent since the last report
        self._num_done = 0  # requests that got past waiting since then
        self._untransferred: dict[str, bool] = {}  # whether each is a batch request

    @property
    def load(self) -> worker_pb2.Load | None:
        """The last report; None: there is none yet."""
        return self._load

    @property
    def is_admitting(self) -> bool:
        return self._load is not None and self._load.admitting and not self._refuses

    def num_waiting(self, *, batch: bool) -> int:
        """Requests that a new one waits for before it can start; at most these, when it is interactive."""
        load = self._load or worker_pb2.Load()
        known = load.num_waiting + len(self._unseen) - self._num_done
        own = len(self._sent) - load.num_running  # a report does not know of what was sent while it was on its way
        num_waiting = max(0, known, own)
        return num_waiting if batch else min(num_waiting, sum(1 for _ in self._sent_before(batch=False)))

    def num_long(self, min_tokens: int, *, batch: bool) -> int:
        """Of those whose prompt is not computed yet, and which a new one waits for, the ones with more tokens."""
        return sum(sent.num_tokens > min_tokens for sent in self._sent_before(batch=batch))

    def num_untransferred(self, *, batch: bool) -> int:
        """Requests whose prompt is computed elsewhere and whose KV this decode worker has not taken over yet."""
        return sum(batch or not other for other in self._untransferred.values())

    def view(self, worker: str, num_known: int, num_cached_tokens: int) -> WorkerView:
        """`num_known`: requests that this proxy has there."""
        load = self._load or worker_pb2.Load()
        num_waiting = self.num_waiting(batch=True)
        return WorkerView(
            worker=worker,
            num_waiting=num_waiting,
            num_requests=max(num_known, load.num_running + num_waiting),
            num_queued_tokens=load.num_queued_tokens + sum(self._unseen.values()),
            num_cached_tokens=num_cached_tokens,
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
        num_tokens = len(request.prompt_ids) + len(request.output_ids)
        self._sent[request.request_id] = Sent(num_tokens, is_batch(request.priority))
        self._unseen[request.request_id] = num_tokens

    def prompt_computed(self, request_id: str) -> None:
        """The request's prefill worker is done: now it is up to this decode worker."""
        sent = self._sent.get(request_id)
        self._untransferred[request_id] = sent is not None and sent.is_batch

    def left_queue(self, request_id: str) -> None:
        """The request no longer waits: it was prefilled, or speaks."""
        self._sent.pop(request_id, None)
        self._untransferred.pop(request_id, None)
        if self._unseen.pop(request_id, None) is None:
            self._num_done += 1

    def forget(self, request_id: str) -> None:
        self._sent.pop(request_id, None)
        self._unseen.pop(request_id, None)
        self._untransferred.pop(request_id, None)

    def _sent_before(self, *, batch: bool) -> Iterator[Sent]:
        return (sent for sent in self._sent.values() if batch or not sent.is_batch)
