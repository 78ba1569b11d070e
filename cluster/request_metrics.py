"""How long a worker's requests took, under vLLM's names, for the routers and dashboards that read these.

Told in tokens that this worker computed: one that came with a hand-off was another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Histogram

from engine.engine import StepResult
from engine.request import FinishReason, Request, RequestKind

FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
TOKEN_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
REQUEST_SECONDS = (*FIRST_TOKEN_SECONDS, 160.0, 320.0, 640.0)


class RequestMetrics:
    """Maintains when each request last got a token; `observe` runs in the engine thread."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"vllm:{name}", text, list(labels), buckets=buckets, registry=registry).labels(**labels)

        first = "From a request's arrival here to its first token"
        self._first = histogram("time_to_first_token_seconds", first, FIRST_TOKEN_SECONDS)
        self._between = histogram("inter_token_latency_seconds", "From one of its tokens to the next", TOKEN_SECONDS)
        whole = "From a request's arrival here to its last token"
        self._whole = histogram("e2e_request_latency_seconds", whole, REQUEST_SECONDS)
        text = "Requests that ended here, by why; those that a proxy ended at a stop string are not among them"
        success = Counter("vllm:request_success", text, [*labels, "finished_reason"], registry=registry)
        self._success = {reason: success.labels(**labels, finished_reason=reason.value) for reason in FinishReason}
        self._spoke_at: WeakKeyDictionary[Request, float] = WeakKeyDictionary()

    def observe(self, result: StepResult) -> None:
        now = result.started_at + result.duration_s
        requests = {work.request.request_id: work.request for work in result.works if work.sample}
        for token in result.tokens:
            request = requests[token.request_id]
            spoke_at = self._spoke_at.get(request)
            if spoke_at is None:
                self._first.observe(now - request.arrived_at)
            else:
                self._between.observe(now - spoke_at)
            self._spoke_at[request] = now
            if token.finish_reason is not None:
                self._success[token.finish_reason].inc()
            if token.finish_reason is not None or request.kind is RequestKind.PREFILL:
                self._whole.observe(now - request.arrived_at)
