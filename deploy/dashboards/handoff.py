"""How KV gets from prefill workers to decode workers: the time of each stage, the bytes, and what went wrong."""

from __future__ import annotations

from deploy.dashboards.dashboard import GRAFANA, Dashboard, Row
from deploy.dashboards.panel import Panel, Query

STAGES = ("reserve", "handshake", "wait_ready", "transfer", "validate")  # in their order
STALE = 'reason="stale"'
EXPIRED = 'reason="lease_expired"'
OTHERS = 'reason!~"stale|lease_expired"'


def _stages() -> list[Query]:
    mean = [(stage, GRAFANA.mean("handoff_stage_seconds", where=f'stage="{stage}"')) for stage in STAGES]
    return [Query(expr, stage) for stage, expr in mean]


HANDOFF = Dashboard(
    "handoff",
    "hand-off of KV",
    [
        Row(
            "Where the time goes",
            [
                Panel(
                    "Stages",
                    "Mean time of each stage, in their order: room on the decode worker, the handshake, waiting "
                    "for the prompt's last chunk, what of the reads came after it, and the prefill worker's verdict",
                    "s",
                    _stages(),
                    width=12,
                    stacked=True,
                ),
                Panel("Waterfall now", "The same, as they are now", "s", _stages(), kind="bargauge", width=6),
                Panel(
                    "Hidden behind prefill",
                    "Share of the reads' time that passed while the prompt was still computed",
                    "percentunit",
                    [Query(GRAFANA.mean("handoff_overlap_ratio"), "hidden")],
                    width=6,
                    most=1,
                ),
                Panel(
                    "Slow stages",
                    "95 % were faster",
                    "s",
                    [Query(GRAFANA.quantile(0.95, "handoff_stage_seconds", "stage"), "{{stage}}")],
                    width=12,
                ),
                Panel(
                    "One prompt's transfer",
                    "From the first read to the last byte",
                    "s",
                    [
                        Query(
                            GRAFANA.quantile(0.5, "kv_transfer_seconds", "transport, mode"),
                            "{{transport}} {{mode}}, median",
                        ),
                        Query(
                            GRAFANA.quantile(0.95, "kv_transfer_seconds", "transport, mode"),
                            "{{transport}} {{mode}}, 95 %",
                        ),
                    ],
                    width=12,
                ),
            ],
        ),
        Row(
            "How much",
            [
                Panel(
                    "Bandwidth",
                    "KV bytes received per second, all together",
                    "Bps",
                    [
                        Query(
                            GRAFANA.rate("kv_transfer_bytes_total", "transport, mode", 'direction="in"'),
                            "{{transport}} {{mode}}",
                        )
                    ],
                ),
                Panel(
                    "Bandwidth of a transfer",
                    "Bytes of a prompt's KV over the time it took",
                    "Bps",
                    [
                        Query(
                            GRAFANA.share(
                                "kv_transfer_bytes_total",
                                "kv_transfer_seconds_sum",
                                "transport, mode",
                                'direction="in",role!="pool"',
                            ),
                            "{{transport}} {{mode}}",
                        )
                    ],
                ),
                Panel(
                    "Received",
                    "Prompt tokens that came as KV and were not computed here",
                    "suffix: tok/s",
                    [Query(GRAFANA.rate("kv_transfer_tokens_total", "mode"), "{{mode}}")],
                ),
                Panel(
                    "Path of requests",
                    "Where their prompt's KV came from",
                    "reqps",
                    [Query(GRAFANA.rate("requests_total", "path"), "{{path}}")],
                    stacked=True,
                ),
                Panel(
                    "Leases",
                    "Sessions whose blocks a peer may read now",
                    "short",
                    [Query(GRAFANA.total("kv_leases_active", "worker"), "{{worker}}")],
                ),
                Panel(
                    "Staging slots",
                    "Where reads land first; quarantined: a transfer there may still be under way",
                    "short",
                    [Query(GRAFANA.total("staging_slots", "state"), "{{state}}")],
                    stacked=True,
                ),
            ],
        ),
        Row(
            "What went wrong",
            [
                Panel(
                    "Failures",
                    "Hand-offs and reads from the pool that failed, without the two beside",
                    "short",
                    [
                        Query(
                            GRAFANA.increase("kv_transfer_failures_total", "reason, mode", OTHERS),
                            "{{reason}} {{mode}}",
                        )
                    ],
                    bars=True,
                    stacked=True,
                    width=6,
                ),
                Panel(
                    "Expired",
                    "Leases that ran out on a prefill worker, and hand-offs that ended so",
                    "short",
                    [
                        Query(GRAFANA.increase("kv_lease_expired_total"), "leases"),
                        Query(GRAFANA.increase("kv_transfer_failures_total", where=EXPIRED), "hand-offs"),
                    ],
                    bars=True,
                    width=6,
                ),
                Panel(
                    "Stale",
                    "Reads whose blocks the owner no longer vouched for: they were thrown away",
                    "short",
                    [
                        Query(GRAFANA.increase("kv_stale_rejected_total"), "commits refused"),
                        Query(GRAFANA.increase("kv_transfer_failures_total", where=STALE), "hand-offs"),
                    ],
                    bars=True,
                    width=6,
                ),
                Panel(
                    "Computed again",
                    "Prompts whose hand-off failed and that the decode worker computed itself",
                    "short",
                    [Query(GRAFANA.increase("fallback_recompute_total", "reason"), "{{reason}}")],
                    bars=True,
                    stacked=True,
                    width=6,
                ),
            ],
        ),
        Row(
            "Pool",
            [
                Panel(
                    "Blocks found",
                    "Share of the keys looked up that the pool had",
                    "percentunit",
                    [
                        Query(
                            f"{GRAFANA.rate('pool_hits_total')} / "
                            f"({GRAFANA.rate('pool_hits_total')} + {GRAFANA.rate('pool_misses_total')})",
                            "found",
                        )
                    ],
                    width=6,
                    most=1,
                ),
                Panel(
                    "Kept",
                    "Bytes of KV",
                    "bytes",
                    [Query(GRAFANA.total("pool_bytes", "worker, tier"), "{{worker}} {{tier}}")],
                    width=6,
                    stacked=True,
                ),
                Panel(
                    "Objects",
                    "Blocks that readers find in memory",
                    "short",
                    [Query(GRAFANA.total("pool_objects", "worker"), "{{worker}}")],
                    width=6,
                    stacked=True,
                ),
                Panel(
                    "Turnover",
                    "Blocks that left memory for others, and offers of workers that failed",
                    "short",
                    [
                        Query(GRAFANA.increase("pool_evictions_total"), "evicted"),
                        Query(GRAFANA.increase("pool_failed_offers_total"), "failed offers"),
                    ],
                    width=6,
                    bars=True,
                ),
            ],
        ),
    ],
)
