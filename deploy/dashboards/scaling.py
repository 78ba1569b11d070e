"""How many workers there are, how many should be, why that changed, and whether it helped."""

from __future__ import annotations

from deploy.dashboards.dashboard import GRAFANA, Dashboard, Row
from deploy.dashboards.panel import Panel, Query
from deploy.dashboards.slo import TPOT, TTFT

READY = 'state="ready"'


def _per_ready_worker(expr: str) -> str:
    """Of series by role."""
    return f"{expr} / ({GRAFANA.total('workers', 'role', READY)} > 0)"


SCALING = Dashboard(
    "scaling",
    "scaling",
    [
        Row(
            "Workers",
            [
                Panel(
                    "Wanted and ready",
                    "A gap that stays means that workers cannot start",
                    "short",
                    [
                        Query(GRAFANA.total("desired_workers", "role"), "{{role}} wanted"),
                        Query(GRAFANA.total("workers", "role", READY), "{{role}} ready"),
                    ],
                ),
                Panel(
                    "By state",
                    "waiting: dead, to be started again; failed: given up",
                    "short",
                    [Query(GRAFANA.total("workers", "state"), "{{state}}")],
                    stacked=True,
                ),
                Panel(
                    "Restarts",
                    "Starts of a worker after its first",
                    "short",
                    [Query(GRAFANA.increase("worker_restarts_total", "worker"), "{{worker}}")],
                    bars=True,
                    stacked=True,
                ),
                Panel(
                    "Changes",
                    "Of a pool's wanted size, by direction and why",
                    "short",
                    [
                        Query(
                            GRAFANA.increase("scale_events_total", "role, direction, reason"),
                            "{{role}} {{direction}}: {{reason}}",
                        )
                    ],
                    bars=True,
                    stacked=True,
                    width=12,
                ),
                Panel(
                    "Role changes",
                    "Workers that went from one pool to another",
                    "short",
                    [Query(GRAFANA.increase("role_flips_total"), "changes")],
                    bars=True,
                    width=12,
                ),
            ],
        ),
        Row(
            "What scaling looks at",
            [
                Panel(
                    "Arrivals",
                    "Requests that ended, per second",
                    "reqps",
                    [Query(GRAFANA.rate("requests_total", "priority"), "{{priority}}")],
                    stacked=True,
                ),
                Panel(
                    "Requests per ready worker",
                    "Running and waiting, by pool",
                    "short",
                    [
                        Query(_per_ready_worker(GRAFANA.total("num_requests_running", "role")), "{{role}} runs"),
                        Query(_per_ready_worker(GRAFANA.total("num_requests_waiting", "role")), "{{role}} waiting"),
                    ],
                ),
                Panel(
                    "KV use",
                    "Mean of each pool's workers",
                    "percentunit",
                    [Query(f"avg by (role) ({GRAFANA.series('kv_cache_usage_ratio')})", "{{role}}")],
                    most=1,
                ),
                Panel(
                    "Cost of a token",
                    "Time of steps over the tokens they computed",
                    "s",
                    [Query(GRAFANA.share("step_duration_seconds_sum", "computed_tokens_total", "role"), "{{role}}")],
                ),
                Panel(
                    "Time to first token",
                    "95 % of requests were faster",
                    "s",
                    [Query(GRAFANA.quantile(0.95, TTFT, "priority"), "{{priority}}")],
                ),
                Panel(
                    "Time per output token",
                    "95 % of requests were faster",
                    "s",
                    [Query(GRAFANA.quantile(0.95, TPOT), "95 %")],
                ),
            ],
        ),
        Row(
            "Scraping",
            [
                Panel(
                    "Targets",
                    "What Prometheus reads: the proxy, the controller, workers and pool nodes; 0: not reached",
                    "short",
                    [Query(f"sum by (role) (up{{{GRAFANA.matcher}}})", "{{role}}")],
                    width=24,
                    stacked=True,
                ),
            ],
        ),
    ],
)
