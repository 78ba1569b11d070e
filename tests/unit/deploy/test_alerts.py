"""Every alert, as promtool evaluates it: silent when all is well, fires when what it is for happens, gone after it."""

from __future__ import annotations

import shutil
import subprocess
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.dashboards.alerts import ALERTS, rules

PROMTOOL = shutil.which("promtool")
SAMPLES = 4  # of a minute
ILL_AT, WELL_AT, END_AT = 3, 13, 56  # minutes
LOOKS = ((2, 0), (12, 1), (55, 0))  # minute, and whether it fires then


def gauge(well: float, ill: float) -> list[float]:
    return [ill if ILL_AT <= n / SAMPLES < WELL_AT else well for n in range(END_AT * SAMPLES)]


def counter(well: float, ill: float) -> list[float]:
    """Grows by so much with each sample."""
    return list(accumulate(gauge(well, ill)))


def events(number: int) -> list[float]:
    """One a minute while it is ill."""
    return [min(max(n // SAMPLES - ILL_AT, 0), number) for n in range(END_AT * SAMPLES)]


STORIES: dict[str, dict[str, list[float]]] = {
    "PdserveProxyDown": {'up{role="proxy"}': gauge(1, 0)},
    "PdserveTargetDown": {'up{role="decode",worker="decode-0"}': gauge(1, 0)},
    "PdserveWorkersMissing": {
        'pdserve_desired_workers{role="decode"}': gauge(2, 2),
        'pdserve_workers{role="decode",state="ready"}': gauge(2, 1),
        'pdserve_workers{role="decode",state="starting"}': gauge(0, 1),
    },
    "PdserveWorkersRestart": {'pdserve_worker_restarts_total{role="decode",worker="decode-0"}': events(5)},
    "PdserveRequestsFail": {
        'pdserve_requests_total{code="ok",path="p2p"}': counter(1, 1),
        'pdserve_requests_total{code="internal",path="none"}': counter(0, 0.1),
    },
    "PdserveRequestsRefused": {
        'pdserve_requests_total{code="ok",path="p2p"}': counter(1, 1),
        'pdserve_requests_total{code="resource_exhausted",path="none"}': counter(0, 1),
    },
    "PdserveFirstTokenSlow": {
        'pdserve_time_to_first_token_seconds_bucket{priority="interactive",le="2.5"}': counter(1, 0),
        'pdserve_time_to_first_token_seconds_bucket{priority="interactive",le="5.0"}': counter(1, 1),
        'pdserve_time_to_first_token_seconds_bucket{priority="interactive",le="+Inf"}': counter(1, 1),
    },
    "PdserveTokensSlow": {
        'pdserve_time_per_output_token_seconds_bucket{le="0.2"}': counter(1, 0),
        'pdserve_time_per_output_token_seconds_bucket{le="0.5"}': counter(1, 1),
        'pdserve_time_per_output_token_seconds_bucket{le="+Inf"}': counter(1, 1),
    },
    "PdserveHandoffsFail": {
        'pdserve_fallback_recompute_total{reason="peer_silent"}': counter(0, 1),
        'pdserve_routing_decisions_total{policy="prefix_aware"}': counter(1, 2),
    },
    "PdserveLeasesExpire": {'pdserve_kv_lease_expired_total{worker="prefill-0"}': counter(0, 0.1)},
    "PdserveStagingQuarantined": {
        'pdserve_staging_slots{worker="decode-0",state="free"}': gauge(8, 4),
        'pdserve_staging_slots{worker="decode-0",state="quarantined"}': gauge(0, 4),
    },
    "PdserveKvFull": {'pdserve_kv_cache_usage_ratio{role="decode",worker="decode-0"}': gauge(0.5, 1)},
    "PdserveScalingSwings": {
        'pdserve_scale_events_total{role="decode",direction="up",reason="load"}': events(5),
        'pdserve_scale_events_total{role="decode",direction="down",reason="idle"}': events(5),
    },
}


def test_there_is_a_story_for_every_alert() -> None:
    assert set(STORIES) == {alert.name for alert in ALERTS}


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH: it comes with Prometheus")
def test_every_alert_fires_when_what_it_is_for_happens_and_clears_after_it(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules()))
    tests = [story_test(name, series) for name, series in STORIES.items()]
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": tests}))
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", "tests.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_drill_s_rules_are_the_same_in_less_time() -> None:
    shipped, fast = ({rule["alert"]: rule for rule in _rules(speed)} for speed in (1.0, 10.0))
    assert shipped["PdserveWorkersMissing"]["for"] == "2m"
    assert fast["PdserveWorkersMissing"]["for"] == "12s"
    assert "[2m]" in shipped["PdserveRequestsFail"]["expr"]
    assert fast["PdserveRequestsFail"]["expr"] == shipped["PdserveRequestsFail"]["expr"].replace("[2m]", "[12s]")
    assert fast["PdserveLeasesExpire"]["for"] == "0s"


def story_test(name: str, series: dict[str, list[float]]) -> dict[str, Any]:
    firing = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
    inputs = [
        {"series": selector.replace("{", '{model_name="m",'), "values": " ".join(f"{value:g}" for value in values)}
        for selector, values in series.items()
    ]
    looks = [
        {"expr": firing, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": value}]}
        for minute, value in LOOKS
    ]
    return {"interval": "15s", "name": name, "input_series": inputs, "promql_expr_test": looks}


def _rules(speed: float) -> list[dict[str, Any]]:
    groups: Any = rules(speed)["groups"]
    return list(groups[0]["rules"])
