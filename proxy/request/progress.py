"""What a request has produced so far: the ids that count, when they came, and how much of the prompt was cached."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.metrics import ProxyMetrics
from proxy.request.event_buffer import Timings, Usage
from proxy.request.job import Job
from rpc import worker_pb2


class Progress:
    """Maintains the accepted ids, those too that are held back for a stop string or half a character."""

    def __init__(self, job: Job, metrics: ProxyMetrics) -> None:
        self.accepted: list[int] = []
        self.queue_s = 0.0
        self.first_token_at: float | None = None  # the loop's clock, as all times here
        self.handoff_s: float | None = None  # from the prefill worker's end to the first token; None: no KV came
        self._job = job
        self._metrics = metrics
        self._last_token_at = 0.0
        self._cached_tokens = len(job.prompt_ids)  # the least that any attempt reported

    @property
    def usage(self) -> Usage:
        cached = self._cached_tokens if self.first_token_at is not None else 0
        return Usage(len(self._job.prompt_ids), len(self.accepted), cached)

    def timings(self, now: float) -> Timings:
        first = self.first_token_at if self.first_token_at is not None else now
        return Timings(self.queue_s, first - self._job.admitted_at, now - self._job.admitted_at)

    @property
    def time_per_output_token_s(self) -> float | None:
        """The mean after the first token; None while there is no second."""
        if self.first_token_at is None or len(self.accepted) < 2:
            return None
        return (self._last_token_at - self.first_token_at) / (len(self.accepted) - 1)

    def dispatched(self, now: float) -> None:
        """The request went to workers for the first time: its time in the queue is over."""
        self.queue_s = now - self._job.admitted_at
        self._metrics.queue_time.labels(self._job.priority.label).observe(self.queue_s)

    def prefilled(self, prefill: worker_pb2.PrefillProgress) -> None:
        """The prompt is in the pool: what the prefill worker had to compute for that was not cached."""
        self._cached_tokens = min(self._cached_tokens, prefill.cached_tokens)

    def decoding(self, origin: worker_pb2.Origin, computed_at: float | None, now: float) -> None:
        """An attempt speaks, and says how it came to the prompt's KV.

        `computed_at`: when its prefill worker said that the prompt is; None: it has not, or there is none.
        """
        if self.first_token_at is None and origin.received_tokens:
            self.handoff_s = 0.0 if computed_at is None else now - computed_at
        self._cached_tokens = min(self._cached_tokens, origin.cached_tokens + origin.prefill_cached_tokens)

    def accept(self, ids: Sequence[int], now: float) -> None:
        self.accepted += ids
        if self.first_token_at is None:
            self.first_token_at = now
            self._metrics.time_to_first_token.labels(self._job.priority.label).observe(now - self._job.admitted_at)
            if self._job.is_first_of_prompt:
                self._metrics.prompt_tokens.inc(len(self._job.prompt_ids))
        else:
            self._metrics.inter_token_latency.observe(now - self._last_token_at)
        self._metrics.generation_tokens.inc(len(ids))
        self._last_token_at = now

    def ended(self, now: float) -> None:
        """Nothing more is accepted."""
        if self.first_token_at is not None and len(self.accepted) > 1:
            self._metrics.time_per_output_token.observe((now - self.first_token_at) / (len(self.accepted) - 1))
