"""What the proxy counts and measures, on a registry of its own.

The registry adds the model's name and the role to every series, so that no caller has to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from proxy.admission.slo import LABELS as SLO_LABELS
from proxy.errors import ErrorCode
from proxy.request.priority import LABELS

FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
DURATION_BUCKETS = (*FIRST_TOKEN_BUCKETS, 160.0, 320.0, 640.0)

REJECTIONS = (
    *("queue_full", "tenant_queue_full", "rate_limited", "slo_unattainable"),
    *("bodies_full", "grammars_busy", "no_worker"),
    *("missing_api_key", "invalid_api_key", "insufficient_scope", "tenant_not_allowed"),
)

LOCAL_REASONS = (
    *("no_prefill_worker", "handoff_failed", "asked"),
    *("short_prompt", "cached_on_decode", "prefill_overloaded"),
)

PATHS = ("p2p", "pooled", "local", "none")


class LabelledRegistry(CollectorRegistry):
    """A registry whose every sample carries the same further labels."""

    def __init__(self, labels: dict[str, str]) -> None:
        super().__init__()
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            labelled = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            labelled.samples = [self._with_labels(s) for s in metric.samples if not s.name.endswith("_created")]
            yield labelled

    def _with_labels(self, sample: Sample) -> Sample:
        return sample._replace(labels={**self._labels, **sample.labels})


class ProxyMetrics:
    def __init__(self, model_name: str) -> None:
        self._registry = registry = LabelledRegistry({"model_name": model_name, "role": "proxy"})
        ProcessCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pdserve_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"pdserve_{name}", text, labels, buckets=buckets, registry=registry)

        self.requests = counter("requests_total", "Requests that ended", "code", "priority", "path")
        self.prompt_tokens = counter("prompt_tokens_total", "Prompt tokens of requests that got a token")
        self.generation_tokens = counter("generation_tokens_total", "Tokens generated and accepted")
        self.routing_decisions = counter("routing_decisions_total", "Requests sent to workers", "policy")
        self.prefix_index_queries = counter("prefix_index_queries_total", "Blocks of prompts that were sent to workers")
        self.prefix_index_hits = counter("prefix_index_hits_total", "Those of them that the worker was known to hold")
        self.local_prefill = counter("local_prefill_total", "Prompts computed by the decode worker", "reason")
        self.fallback_recompute = counter(
            "fallback_recompute_total", "Prompts computed again since their hand-off failed, by why it did", "reason"
        )
        self.retries = counter("retries_total", "Further attempts, by the stage that failed", "stage")
        self.migrations = counter("migrations_total", "Requests that moved to another decode worker mid-stream")
        self.rejected = counter("rejected_total", "Requests that were not admitted", "reason")
        self.slo_requests = counter("slo_requests_total", "Choices whose client named a goal (x-slo-…-ms)", "slo")
        self.slo_attained = counter("slo_attained_total", "Those of them that met it", "slo")
        self.cancelled = counter("cancelled_total", "Requests whose client went away or was too slow", "phase")
        self.request_duration = histogram("request_duration_seconds", "Admission to end", DURATION_BUCKETS)
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "Admission to first token", FIRST_TOKEN_BUCKETS, "priority"
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Between two messages with tokens of a request", TOKEN_BUCKETS
        )
        self.time_per_output_token = histogram(
            "time_per_output_token_seconds", "A request's mean, from its first token on", TOKEN_BUCKETS
        )
        self.queue_time = histogram("queue_time_seconds", "Admission to first dispatch", DURATION_BUCKETS, "priority")
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        """Series that exist from the start: a rate of something that never happened is 0, not missing."""
        for stage in ("prefill", "transfer", "decode"):
            self.retries.labels(stage)
        for reason in LOCAL_REASONS:
            self.local_prefill.labels(reason)
        for reason in REJECTIONS:
            self.rejected.labels(reason)
        for slo in SLO_LABELS:
            self.slo_requests.labels(slo)
            self.slo_attained.labels(slo)
        for reason in ("prefill_failed", "prefill_lost"):
            self.fallback_recompute.labels(reason)
        for phase in ("queued", "prefilling", "transferring", "decoding"):
            self.cancelled.labels(phase)
        for priority in LABELS:
            self.time_to_first_token.labels(priority)
            self.queue_time.labels(priority)
            for code in ("ok", *ErrorCode):
                for path in PATHS:
                    self.requests.labels(code, priority, path)

    def watch(self, num_in_flight: Callable[[], int], num_queued: Callable[[str], int]) -> None:
        """Reads these two at each scrape; `num_queued` is asked with each priority's label."""
        in_flight = Gauge("pdserve_requests_in_flight", "Admitted and not ended", registry=self._registry)
        in_flight.set_function(num_in_flight)
        queued = Gauge("pdserve_requests_queued", "Waiting in the proxy", ["priority"], registry=self._registry)
        for priority in LABELS:
            queued.labels(priority).set_function(partial(num_queued, priority))

    def watch_index(self, num_blocks: Callable[[], int]) -> None:
        """Reads this at each scrape."""
        size = Gauge("pdserve_prefix_index_blocks", "Of workers' caches, known here", registry=self._registry)
        size.set_function(num_blocks)

    def exposition(self) -> bytes:
        """Prometheus's text format."""
        return generate_latest(self._registry)
