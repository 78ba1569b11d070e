"""Which workers get requests, what waits before them, and how often a cache had the prompt already."""

from __future__ import annotations

from deploy.dashboards.dashboard import GRAFANA, Dashboard, Row
from deploy.dashboards.panel import Panel, Query
from deploy.dashboards.slo import TTFT

ROUTING = Dashboard(
    "routing",
    "router and caches",
    [
        Row(
            "Routing",
            [
                Panel(
                    "Decisions",
                    "Requests sent to workers, further attempts included",
                    "reqps",
                    [Query(GRAFANA.rate("routing_decisions_total", "policy"), "{{policy}}")],
                ),
                Panel(
                    "Balance",
                    "Requests on each worker, running and waiting",
                    "short",
                    [
                        Query(
                            f"{GRAFANA.total('num_requests_running', 'worker')} + "
                            f"{GRAFANA.total('num_requests_waiting', 'worker')}",
                            "{{worker}}",
                        )
                    ],
                ),
                Panel(
                    "Prompts computed by decode workers",
                    "By why no prefill worker did it",
                    "reqps",
                    [Query(GRAFANA.rate("local_prefill_total", "reason"), "{{reason}}")],
                    stacked=True,
                ),
                Panel(
                    "Queued",
                    "Waiting in the proxy for a worker",
                    "short",
                    [Query(GRAFANA.total("requests_queued", "priority"), "{{priority}}")],
                    stacked=True,
                ),
                Panel(
                    "In the queue",
                    "From admission to the first worker",
                    "s",
                    [
                        Query(GRAFANA.quantile(0.5, "queue_time_seconds", "priority"), "{{priority}}, median"),
                        Query(GRAFANA.quantile(0.95, "queue_time_seconds", "priority"), "{{priority}}, 95 %"),
                    ],
                ),
                Panel(
                    "Queue in the first token's time",
                    "Share of the time to first token that passed in the queue",
                    "percentunit",
                    [Query(GRAFANA.share("queue_time_seconds_sum", f"{TTFT}_sum"), "queue")],
                    most=1,
                ),
            ],
        ),
        Row(
            "Tried again",
            [
                Panel(
                    "Retries",
                    "Further attempts, by the stage that failed",
                    "short",
                    [Query(GRAFANA.increase("retries_total", "stage"), "{{stage}}")],
                    bars=True,
                    stacked=True,
                ),
                Panel(
                    "Migrations",
                    "Requests that went on with another decode worker in mid-stream",
                    "short",
                    [Query(GRAFANA.increase("migrations_total"), "migrations")],
                    bars=True,
                ),
                Panel(
                    "Refused",
                    "Requests that were not admitted",
                    "short",
                    [Query(GRAFANA.increase("rejected_total", "reason"), "{{reason}}")],
                    bars=True,
                    stacked=True,
                ),
            ],
        ),
        Row(
            "Caches",
            [
                Panel(
                    "Prompt blocks where they are cached",
                    "Share of a prompt's blocks that its worker was known to hold",
                    "percentunit",
                    [Query(GRAFANA.share("prefix_index_hits_total", "prefix_index_queries_total"), "known")],
                    most=1,
                    width=6,
                ),
                Panel(
                    "Prefix cache",
                    "Share of prompt tokens that the workers' own caches had",
                    "percentunit",
                    [Query(GRAFANA.share("prefix_cache_hits_total", "prefix_cache_queries_total", "role"), "{{role}}")],
                    most=1,
                    width=6,
                ),
                Panel(
                    "Cached blocks",
                    "KV blocks that nobody uses and that a prompt may find",
                    "short",
                    [Query(GRAFANA.total("kv_blocks", "worker", 'state="cached"'), "{{worker}}")],
                    width=6,
                ),
                Panel(
                    "Index",
                    "Cached blocks that the proxy knows of",
                    "short",
                    [Query(GRAFANA.total("prefix_index_blocks"), "blocks")],
                    width=6,
                ),
            ],
        ),
    ],
)
