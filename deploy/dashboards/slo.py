"""What clients get: whether it is fast enough, and whether they are served at all."""

from __future__ import annotations

from deploy.dashboards.dashboard import GRAFANA, Dashboard, Row, Variable
from deploy.dashboards.panel import Panel, Query, Steps

TTFT, TPOT = "time_to_first_token_seconds", "time_per_output_token_seconds"
MOSTLY = Steps(warn=0.95, bad=0.9)  # of a share that should be 1
SPREAD = ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))
FAULTS = 'code=~"unavailable|deadline_exceeded|aborted|internal"'
SERVED = "1 - " + GRAFANA.share("requests_total", "requests_total", part_where=FAULTS)
MISSING = GRAFANA.total("desired_workers") + " - " + GRAFANA.total("workers", where='state="ready"')


def _spread(name: str) -> list[Query]:
    return [Query(GRAFANA.quantile(share, name), legend) for share, legend in SPREAD]


def _within(name: str, goal: str) -> str:
    return GRAFANA.share(f"{name}_bucket", f"{name}_count", part_where=f'le="{goal}"')


OVERVIEW = Dashboard(
    "slo",
    "service levels",
    variables=[
        Variable("ttft", "First token within (s)", ["1.0", "0.25", "0.5", "2.5", "5.0", "10.0"]),
        Variable("tpot", "Each token within (s)", ["0.1", "0.025", "0.05", "0.2", "0.5"]),
    ],
    rows=[
        Row(
            "Now",
            [
                Panel(
                    "First token in time",
                    "Share of requests whose first token came within the time chosen above",
                    "percentunit",
                    [Query(_within(TTFT, "$ttft"), "in time")],
                    kind="stat",
                    width=4,
                    steps=MOSTLY,
                    most=1,
                ),
                Panel(
                    "Tokens in time",
                    "Share of requests whose mean time per token stayed within the time chosen above",
                    "percentunit",
                    [Query(_within(TPOT, "$tpot"), "in time")],
                    kind="stat",
                    width=4,
                    steps=MOSTLY,
                    most=1,
                ),
                Panel(
                    "Served",
                    "Share of requests that did not end with a fault of the service",
                    "percentunit",
                    [Query(SERVED, "served")],
                    kind="stat",
                    width=4,
                    steps=Steps(warn=0.999, bad=0.99),
                    most=1,
                ),
                Panel(
                    "Requests",
                    "That ended, per second",
                    "reqps",
                    [Query(GRAFANA.rate("requests_total"), "requests")],
                    kind="stat",
                    width=4,
                ),
                Panel(
                    "Generated",
                    "Tokens per second, all requests together",
                    "suffix: tok/s",
                    [Query(GRAFANA.rate("generation_tokens_total"), "tokens")],
                    kind="stat",
                    width=4,
                ),
                Panel(
                    "Workers missing",
                    "Wanted, and not ready",
                    "short",
                    [Query(MISSING, "missing")],
                    kind="stat",
                    width=4,
                    steps=Steps(warn=1, bad=2),
                ),
            ],
        ),
        Row(
            "How fast",
            [
                Panel("Time to first token", "From admission; interactive and batch together", "s", _spread(TTFT)),
                Panel("Time per output token", "Of a request the mean, from its first token on", "s", _spread(TPOT)),
                Panel(
                    "Between two tokens", "As a client sees a stream pause", "s", _spread("inter_token_latency_seconds")
                ),
                Panel(
                    "First token by priority",
                    "95 % of requests were faster",
                    "s",
                    [Query(GRAFANA.quantile(0.95, TTFT, "priority"), "{{priority}}")],
                ),
                Panel(
                    "In the queue",
                    "From admission to the first worker; 95 % waited less",
                    "s",
                    [Query(GRAFANA.quantile(0.95, "queue_time_seconds", "priority"), "{{priority}}")],
                ),
                Panel("Whole request", "From admission to its end", "s", _spread("request_duration_seconds")),
            ],
        ),
        Row(
            "How many",
            [
                Panel(
                    "Requests by outcome",
                    "ok, or the error that the client got",
                    "reqps",
                    [Query(GRAFANA.rate("requests_total", "code"), "{{code}}")],
                    stacked=True,
                ),
                Panel(
                    "In the proxy",
                    "Admitted and not ended, and those of them that wait for a worker",
                    "short",
                    [
                        Query(GRAFANA.total("requests_in_flight"), "in flight"),
                        Query(GRAFANA.total("requests_queued", "priority"), "queued, {{priority}}"),
                    ],
                ),
                Panel(
                    "Tokens",
                    "Of prompts whose request got a token, and generated",
                    "suffix: tok/s",
                    [
                        Query(GRAFANA.rate("prompt_tokens_total"), "prompt"),
                        Query(GRAFANA.rate("generation_tokens_total"), "generated"),
                    ],
                ),
                Panel(
                    "Refused",
                    "Requests that were not admitted, by why",
                    "reqps",
                    [Query(GRAFANA.rate("rejected_total", "reason"), "{{reason}}")],
                    stacked=True,
                ),
                Panel(
                    "Cancelled",
                    "The client went away or read too slowly, by what the request was doing",
                    "reqps",
                    [Query(GRAFANA.rate("cancelled_total", "phase"), "{{phase}}")],
                    stacked=True,
                ),
                Panel(
                    "Clients' own goals",
                    "Requests that named one (x-slo-ttft-ms, x-slo-tpot-ms), and that it was met for",
                    "reqps",
                    [
                        Query(GRAFANA.rate("slo_requests_total", "slo"), "{{slo}} asked"),
                        Query(GRAFANA.rate("slo_attained_total", "slo"), "{{slo}} met"),
                    ],
                ),
            ],
        ),
    ],
)
