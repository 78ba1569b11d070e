"""A worker's engine metrics: gauges read at scrape time, counters fed after each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.request_metrics import RequestMetrics
from engine.engine import StepResult
from engine.engine_thread import EngineThread
from engine.swapping import Direction

STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class EngineMetrics:
    """Maintains the step counters; `observe` runs in the engine thread."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str], engine: EngineThread) -> None:
        names = [*labels, "kind"]
        self._labels = labels
        self._computed = Counter("pdserve_computed_tokens", "Tokens the model computed", names, registry=registry)
        self._preemptions = Counter("pdserve_preemptions", "Requests that gave up blocks", names, registry=registry)
        directions = [*labels, "direction"]
        self._swapped = Counter("pdserve_swap_bytes", "KV moved by preemption", directions, registry=registry)
        self._block_bytes = engine.engine.cache.block_bytes
        for direction in Direction:
            self._swapped.labels(**labels, direction=direction.value)
        self._batch = Histogram("pdserve_batch_tokens", "Tokens in one step", names, registry=registry, buckets=TOKENS)
        self._step = Histogram(
            "pdserve_step_duration_seconds", "One step's time", names, registry=registry, buckets=STEP_SECONDS
        )
        for kind in ("prefill", "decode"):
            self._computed.labels(**labels, kind=kind)  # shown as 0 before the first token
        for kind in ("prefill", "decode", "mixed"):
            self._batch.labels(**labels, kind=kind)
            self._step.labels(**labels, kind=kind)
        for kind in ("recompute", "swap"):
            self._preemptions.labels(**labels, kind=kind)
        self._vllm_preemptions, self._vllm_prompt, self._vllm_generation = (
            Counter(f"vllm:{name}", f"As pdserve_{ours}", list(labels), registry=registry).labels(**labels)
            for name, ours in (
                ("num_preemptions", "preemptions_total"),
                ("prompt_tokens", "computed_tokens_total of kind prefill"),
                ("generation_tokens", "computed_tokens_total of kind decode"),
            )
        )
        self._requests = RequestMetrics(registry, labels)
        registry.register(EngineGauges(engine, labels))

    def observe(self, result: StepResult) -> None:
        self._requests.observe(result)
        for preemption in result.preempted:
            self._preemptions.labels(**self._labels, kind="swap" if preemption.swapped else "recompute").inc()
        for swap in result.swaps:
            size = len(swap.blocks) * self._block_bytes
            self._swapped.labels(**self._labels, direction=swap.direction.value).inc(size)
        self._vllm_preemptions.inc(len(result.preempted))
        self._vllm_prompt.inc(result.num_prefill_tokens)
        self._vllm_generation.inc(result.num_decode_tokens)
        if not result.num_tokens:
            return
        self._computed.labels(**self._labels, kind="prefill").inc(result.num_prefill_tokens)
        self._computed.labels(**self._labels, kind="decode").inc(result.num_decode_tokens)
        kind = "mixed" if result.num_prefill_tokens and result.num_decode_tokens else "prefill"
        kind = "decode" if not result.num_prefill_tokens else kind
        self._batch.labels(**self._labels, kind=kind).observe(result.num_tokens)
        self._step.labels(**self._labels, kind=kind).observe(result.duration_s)


class EngineGauges(Collector):
    """What the engine looks like now, under our names and the few of vLLM's that routers and dashboards read."""

    def __init__(self, engine: EngineThread, labels: Mapping[str, str]) -> None:
        self._engine = engine
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        load = self._engine.load
        pool = self._engine.engine.pool
        usage = (load.blocks.used + load.blocks.leased) / pool.num_blocks
        lookups, hits = (n * self._engine.engine.config.block_size for n in (pool.num_lookups, pool.num_hits))
        running, waiting = load.num_open - load.num_waiting, load.num_waiting
        yield self._gauge("pdserve_num_requests_running", "Requests that hold blocks", running)
        yield self._gauge("pdserve_num_requests_waiting", "Requests that wait for blocks", waiting)
        yield self._gauge("pdserve_kv_cache_usage_ratio", "Used and leased blocks over all", usage)
        blocks = GaugeMetricFamily("pdserve_kv_blocks", "KV blocks by state", labels=[*self._labels, "state"])
        for state in ("free", "used", "cached", "leased"):
            blocks.add_metric([*self._labels.values(), state], getattr(load.blocks, state))
        yield blocks
        yield self._counter("pdserve_prefix_cache_queries", "Prompt tokens looked up in the prefix cache", lookups)
        yield self._counter("pdserve_prefix_cache_hits", "Prompt tokens found there", hits)
        yield self._gauge("vllm:num_requests_running", "As pdserve_num_requests_running", running)
        yield self._gauge("vllm:num_requests_waiting", "As pdserve_num_requests_waiting", waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "As pdserve_kv_cache_usage_ratio", usage)
        yield self._counter("vllm:prefix_cache_queries", "As pdserve_prefix_cache_queries", lookups)
        yield self._counter("vllm:prefix_cache_hits", "As pdserve_prefix_cache_hits", hits)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family
