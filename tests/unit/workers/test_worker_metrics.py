from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from cluster.worker_metrics import EngineMetrics
from engine.engine_thread import EngineThread
from tests.unit.engine.conftest import RequestFactory, make_engine

LABELS = {"model_name": "fake", "role": "mixed", "worker": "w"}


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
