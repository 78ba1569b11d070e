"""Prefill and decode workers side by side: what each pool does, how full it is, and what its steps cost."""

from __future__ import annotations

from collections.abc import Callable

from deploy.dashboards.dashboard import GRAFANA, Dashboard, Row
from deploy.dashboards.panel import Panel, Query, Steps

PREFILL, DECODE = 'role="prefill"', 'role=~"decode|mixed"'
FULL = Steps(warn=0.8, bad=0.95)


def _both(title: str, make: Callable[[str], Panel]) -> Row:
    return Row(f"{title}: prefill on the left, decode and mixed on the right", [make(PREFILL), make(DECODE)])


def _requests(where: str) -> Panel:
    queries = [
        Query(GRAFANA.total("num_requests_running", "worker", where), "{{worker}} runs"),
        Query(GRAFANA.total("num_requests_waiting", "worker", where), "{{worker}} waiting"),
    ]
    return Panel("Requests", "That hold KV blocks, and that wait for some", "short", queries, width=12)


def _computed(where: str) -> Panel:
    queries = [Query(GRAFANA.rate("computed_tokens_total", "kind", where), "{{kind}}")]
    text = "Tokens that the model computed: of prompts, and generated ones"
    return Panel("Computed", text, "suffix: tok/s", queries, width=12, stacked=True)


def _kv_use(where: str) -> Panel:
    queries = [Query(GRAFANA.series("kv_cache_usage_ratio", where), "{{worker}}")]
    text = "Share of the KV blocks that running requests use or peers lease; cached ones are free to take"
    return Panel("KV use", text, "percentunit", queries, width=12, steps=FULL, most=1)


def _blocks(where: str) -> Panel:
    queries = [Query(GRAFANA.total("kv_blocks", "state", where), "{{state}}")]
    return Panel("KV blocks", "Of all these workers, by state", "short", queries, width=12, stacked=True)


def _steps(where: str) -> Panel:
    queries = [
        Query(GRAFANA.mean("step_duration_seconds", "kind", where), "{{kind}}, mean"),
        Query(GRAFANA.quantile(0.95, "step_duration_seconds", "kind", where), "{{kind}}, 95 %"),
    ]
    text = "One step of the engine, by whether it computed prompts, generated, or both"
    return Panel("Step time", text, "s", queries, width=12)


def _batches(where: str) -> Panel:
    queries = [Query(GRAFANA.mean("batch_tokens", "kind", where), "{{kind}}, mean")]
    return Panel("Batch", "Tokens that one step computes", "short", queries, width=12)


def _prefix(where: str) -> Panel:
    share = GRAFANA.share("prefix_cache_hits_total", "prefix_cache_queries_total", "worker", where, where)
    text = "Share of prompt tokens that the worker's own cache had"
    return Panel("Prefix cache", text, "percentunit", [Query(share, "{{worker}}")], width=12, most=1)


def _preemptions(where: str) -> Panel:
    queries = [
        Query(GRAFANA.increase("preemptions_total", "kind", where), "{{kind}}"),
    ]
    text = "Requests that gave up their KV blocks for others: computed again later, or kept in host memory"
    return Panel("Preemptions", text, "short", queries, width=12, bars=True, stacked=True)


def _swapped(where: str) -> Panel:
    queries = [Query(GRAFANA.rate("swap_bytes_total", "direction", where), "{{direction}}")]
    return Panel("Swapped", "KV moved to host memory and back", "Bps", queries, width=12)


POOLS = Dashboard(
    "pools",
    "prefill and decode",
    [
        _both("Load", _requests),
        _both("Work", _computed),
        _both("KV use", _kv_use),
        _both("KV blocks", _blocks),
        _both("Step time", _steps),
        _both("Batch", _batches),
        _both("Prefix cache", _prefix),
        _both("Preemptions", _preemptions),
        _both("Swapped", _swapped),
    ],
)
