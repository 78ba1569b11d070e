"""What an operator is woken for, or told of: each with a bound that a healthy cluster keeps, for every model apart."""

from __future__ import annotations

import re

from deploy.dashboards.alert import Alert
from deploy.dashboards.promql import Promql
from deploy.dashboards.slo import FAULTS, TPOT, TTFT

WINDOW = "2m"
SHORTEST_S = 1
RECENT = Promql(WINDOW)
MODEL = "model_name"
INTERACTIVE = 'priority="interactive"'
QUARANTINED = 'state="quarantined"'
REFUSALS = 'code="resource_exhausted"'

ALERTS = (
    Alert(
        "PdserveProxyDown",
        f'min by ({MODEL}) (up{{role="proxy"}})',
        "< 1",
        "1m",
        "critical",
        "The proxy of {{ $labels.model_name }} does not answer",
        "Clients are not served. `pdserve status` tells whether it starts again, `pdserve logs proxy` why it ended.",
    ),
    Alert(
        "PdserveTargetDown",
        f'min by ({MODEL}, role, worker) (up{{role!="proxy",worker!=""}})',
        "< 1",
        "1m",
        "warning",
        "{{ $labels.worker }} does not answer",
        "It is stopped, overloaded, or cut off from Prometheus. `pdserve status`, then its machine and its network.",
    ),
    Alert(
        "PdserveWorkersMissing",
        f"{RECENT.total('desired_workers', f'{MODEL}, role')} - "
        + RECENT.total("workers", f"{MODEL}, role", 'state="ready"'),
        "> 0",
        "2m",
        "warning",
        "{{ $value }} of the {{ $labels.role }} workers wanted are not ready",
        "`pdserve status` shows each one's state and last error, `pdserve logs WORKER` the rest.",
    ),
    Alert(
        "PdserveWorkersRestart",
        f"sum by ({MODEL}, role, worker) (increase({RECENT.series('worker_restarts_total')}[10m]))",
        "> 2",
        "0m",
        "warning",
        "{{ $labels.worker }} was started again {{ $value | humanize }} times in ten minutes",
        "`pdserve status` has its last error, `pdserve logs WORKER` what came before.",
    ),
    Alert(
        "PdserveRequestsFail",
        RECENT.share("requests_total", "requests_total", MODEL, FAULTS),
        "> 0.02",
        "2m",
        "critical",
        "{{ $value | humanizePercentage }} of the requests fail",
        "`pdserve logs proxy` names the reason of each; docs/failures.md says what follows from it.",
    ),
    Alert(
        "PdserveRequestsRefused",
        RECENT.share("requests_total", "requests_total", MODEL, REFUSALS),
        "> 0.05",
        "2m",
        "warning",
        "{{ $value | humanizePercentage }} of the requests are refused (429)",
        "Add workers of the pool that is short (dashboard: scaling), or see docs/overload.md.",
    ),
    Alert(
        "PdserveFirstTokenSlow",
        RECENT.quantile(0.95, TTFT, MODEL, INTERACTIVE),
        "> 2.5",
        "2m",
        "warning",
        "One first token in twenty takes over {{ $value | humanizeDuration }}",
        "Long queues (dashboard: router) want prefill workers; else prompts are long, or hand-offs slow.",
    ),
    Alert(
        "PdserveTokensSlow",
        RECENT.quantile(0.95, TPOT, MODEL),
        "> 0.25",
        "2m",
        "warning",
        "One request in twenty gets a token only every {{ $value | humanizeDuration }}",
        "Decode workers have too much at a time: add some, or lower max_num_seqs (docs/scheduling.md).",
    ),
    Alert(
        "PdserveHandoffsFail",
        f"{RECENT.rate('fallback_recompute_total', MODEL)} / {RECENT.rate('routing_decisions_total', MODEL)}",
        "> 0.05",
        "1m",
        "warning",
        "{{ $value | humanizePercentage }} of the hand-offs fail, and their prompts are computed again",
        "Requests are still answered, later. Dashboard: hand-off, failures by reason; then the network.",
    ),
    Alert(
        "PdserveLeasesExpire",
        RECENT.increase("kv_lease_expired_total", f"{MODEL}, worker"),
        "> 0",
        "0m",
        "warning",
        "Leases ran out on {{ $labels.worker }}",
        "A decode worker fell silent in the middle of a hand-off: its machine, or the network to it.",
    ),
    Alert(
        "PdserveStagingQuarantined",
        f"{RECENT.total('staging_slots', f'{MODEL}, worker', QUARANTINED)} / "
        + RECENT.total("staging_slots", f"{MODEL}, worker"),
        "> 0.25",
        "1m",
        "warning",
        "{{ $value | humanizePercentage }} of the staging slots of {{ $labels.worker }} are in doubt",
        "Reads from a peer never ended; at its limit the worker is started again. Look at the peer's network.",
    ),
    Alert(
        "PdserveKvFull",
        f"max by ({MODEL}, role, worker) ({RECENT.series('kv_cache_usage_ratio')})",
        "> 0.95",
        "2m",
        "warning",
        "The KV cache of {{ $labels.worker }} is full",
        "Requests wait or are preempted: add workers of its pool, or raise cluster.engine.num_blocks.",
    ),
    Alert(
        "PdserveScalingSwings",
        f"sum by ({MODEL}, role) (increase({RECENT.series('scale_events_total')}[30m]))",
        "> 6",
        "0m",
        "warning",
        "The {{ $labels.role }} pool was resized {{ $value | humanize }} times in half an hour",
        "`pdserve logs controller` says why each time; longer cooldown_s or down_after_s calm the autoscaler.",
    ),
)


def rules(speed: float = 1.0) -> dict[str, object]:
    """Prometheus's rule file. `speed`: all durations are divided by it, for a drill that has no hours."""
    return {"groups": [{"name": "pdserve", "rules": [_faster(alert.json(), speed) for alert in ALERTS]}]}


def _faster(rule: dict[str, object], speed: float) -> dict[str, object]:
    if speed == 1.0:
        return rule
    shorter = {"expr": re.sub(r"\[(\d+m)\]", lambda m: f"[{_divided(m[1], speed)}]", str(rule["expr"]))}
    return {**rule, **shorter, "for": _divided(str(rule["for"]), speed)}


def _divided(minutes: str, speed: float) -> str:
    """`2m` at speed 10 is `12s`; a wait of nothing stays one."""
    seconds = int(minutes.removesuffix("m")) * 60 / speed
    return f"{max(SHORTEST_S, round(seconds)) if seconds else 0}s"
