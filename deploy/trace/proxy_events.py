"""A proxy's view of its requests as slices: queued, waiting for the first token, streaming."""

from __future__ import annotations

from deploy.trace.trace import Process, Trace, Value
from deploy.trace.worker_events import label_of
from rpc import observe_pb2


class ProxyEvents:
    """Maintains the newest that is known of each request: one that runs is told again each time."""

    def __init__(self, trace: Trace, source: observe_pb2.Source) -> None:
        self._source = source
        self._process: Process = trace.process(source.name, "proxy")
        self._courses: dict[str, observe_pb2.Course] = {}

    def add(self, records: observe_pb2.Records) -> None:
        for course in records.courses:
            self._courses[records.request_ids[course.request]] = course

    def finish(self) -> None:
        lanes = self._process.lanes("requests")
        for key, course in sorted(self._courses.items(), key=lambda one: one[1].admitted_at):
            self._draw(key, course, lanes.take(self._unix(course.admitted_at), self._unix(course.known_until)))

    def _draw(self, key: str, course: observe_pb2.Course, tid: int) -> None:
        label, at = label_of(key), course.admitted_at
        phases = [("queued", course.dispatched_at), ("first token", course.first_token_at), ("streams", None)]
        for phase, until in phases:
            end = until or course.known_until
            self._process.slice(tid, f"{label} {phase}", phase, self._unix(at), self._unix(end), {"request": key})
            at = end
            if not until:
                break
        if course.outcome:
            told: dict[str, Value] = {
                "request": key,
                "outcome": course.outcome,
                "prefill_worker": course.prefill_worker,
                "decode_worker": course.decode_worker,
                "prompt_tokens": course.prompt_tokens,
                "completion_tokens": course.completion_tokens,
                "attempts": course.num_attempts,
            }
            name = f"{label} {course.outcome}"
            self._process.mark(tid, name, "answered", self._unix(course.known_until), told)

    def _unix(self, at: float) -> float:
        return self._source.unix_at_zero + at
