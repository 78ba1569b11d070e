from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from cluster.worker_metrics import EngineMetrics
from engine.engine_thread import EngineThread
from engine.request import RequestKind
from tests.unit.engine.conftest import RequestFactory, make_engine

LABELS = {"model_name": "fake", "role": "mixed", "worker": "w"}
NAMES: dict[str, tuple[str, ...]] = {  # with the labels besides a worker's own
    "pdserve_num_requests_running": (),
    "pdserve_num_requests_waiting": (),
    "pdserve_kv_blocks": ("state",),
    "pdserve_kv_cache_usage_ratio": (),
    "pdserve_prefix_cache_queries_total": (),
    "pdserve_prefix_cache_hits_total": (),
    "pdserve_preemptions_total": ("kind",),
    "pdserve_batch_tokens_count": ("kind",),
    "pdserve_step_duration_seconds_count": ("kind",),
    "pdserve_swap_bytes_total": ("direction",),
    "pdserve_computed_tokens_total": ("kind",),
    "vllm:num_requests_running": (),
    "vllm:num_requests_waiting": (),
    "vllm:kv_cache_usage_perc": (),
    "vllm:time_to_first_token_seconds_count": (),
    "vllm:inter_token_latency_seconds_count": (),
    "vllm:e2e_request_latency_seconds_count": (),
    "vllm:prompt_tokens_total": (),
    "vllm:generation_tokens_total": (),
    "vllm:num_preemptions_total": (),
    "vllm:prefix_cache_queries_total": (),
    "vllm:prefix_cache_hits_total": (),
    "vllm:request_success_total": ("finished_reason",),
}


def test_steps_are_counted_under_our_names_and_vllms() -> None:
    engine = make_engine()
    thread = EngineThread(engine)
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry, LABELS, thread)
    engine.add(RequestFactory()(range(10), max_tokens=3))
    while (result := engine.step()).num_tokens:
        metrics.observe(result)
        thread.load = engine.load()
    for name, value in (
        ("pdserve_num_requests_running", 0),
        ("vllm:prompt_tokens_total", 10),
        ("vllm:generation_tokens_total", 2),
        ("vllm:num_preemptions_total", 0),
        ("pdserve_prefix_cache_hits_total", 0),
    ):
        assert registry.get_sample_value(name, LABELS) == value, name
    computed = "pdserve_computed_tokens_total"
    assert registry.get_sample_value(computed, {**LABELS, "kind": "prefill"}) == 10
    assert registry.get_sample_value(computed, {**LABELS, "kind": "decode"}) == 2
    assert registry.get_sample_value("pdserve_kv_blocks", {**LABELS, "state": "used"}) == 0
    assert b"NaN" not in generate_latest(registry)


def test_requests_are_timed_from_their_arrival_to_each_token_that_was_computed_here() -> None:
    engine = make_engine()
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry, LABELS, EngineThread(engine))
    new_request = RequestFactory()
    engine.add(new_request(range(10), max_tokens=3))
    engine.add(new_request(range(10), max_tokens=3, kind=RequestKind.PREFILL))
    while (result := engine.step()).num_tokens:
        metrics.observe(result)
    for name, value in (
        ("vllm:time_to_first_token_seconds_count", 2),
        ("vllm:inter_token_latency_seconds_count", 2),
        ("vllm:e2e_request_latency_seconds_count", 2),
    ):
        assert registry.get_sample_value(name, LABELS) == value, name
    for reason, value in (("length", 1), ("stop", 0)):
        found = registry.get_sample_value("vllm:request_success_total", {**LABELS, "finished_reason": reason})
        assert found == value, reason


def test_every_metric_of_a_worker_has_the_name_and_labels_that_dashboards_know() -> None:
    registry = CollectorRegistry()
    thread = EngineThread(make_engine())
    EngineMetrics(registry, LABELS, thread)
    found = {(s.name, *sorted(s.labels.keys() - LABELS.keys() - {"le"})) for f in registry.collect() for s in f.samples}
    expected = {(name, *labels) for name, labels in NAMES.items()}
    assert expected <= found, expected - found
