"""The autoscaler's decisions over minutes of load, in virtual time."""

from __future__ import annotations

import pytest

from cluster.autoscale.judge import AtLimit, Resize, RoleChange
from cluster.autoscale.spec import AutoscaleSpec, ClassTargets, PoolLimits, Targets
from tests.unit.cluster.autoscale.simulated_cluster import Load, SimulatedCluster

TARGETS = Targets(interactive=ClassTargets(ttft_s=1.0, tpot_s=0.08))
WIDE = PoolLimits(min=1, max=8)
SPEC = AutoscaleSpec(enabled=True, targets=TARGETS, prefill=WIDE, decode=WIDE)
CHAT, CODE = Load(6.0, 150, 100), Load(6.0, 600, 10)


@pytest.mark.parametrize("seed", range(2))
def test_a_load_at_70_percent_then_a_step_up_then_down_is_one_change_of_a_pool_each(seed: int) -> None:
    def load_at(second: int) -> Load:
        return Load(14.0 if 600 <= second < 1500 else 7.0, 200, 100)  # 7/s of 200 tokens: 70 % of two workers

    cluster = SimulatedCluster(SPEC, {"prefill": 2, "decode": 4}, seed)
    cluster.run(load_at, 2700)
    changes = [(at, verdict) for at, verdict in cluster.verdicts if isinstance(verdict, Resize)]
    assert all(at > 600 for at, _ in changes), changes
    for role in ("prefill", "decode"):
        up = [verdict for at, verdict in changes if verdict.role == role and at < 1500]
        down = [verdict for at, verdict in changes if verdict.role == role and at >= 1500]
        assert [verdict.after > verdict.before for verdict in up] == [True] * len(up)
        assert [verdict.after < verdict.before for verdict in down] == [True] * len(down)
        assert len(up) <= 1, changes
        assert len(down) <= 1, changes
    assert any(verdict.role == "prefill" for _, verdict in changes)
    settled = [seconds for at, seconds in cluster.first_token_s if 800 <= at < 1500]
    assert sorted(settled)[int(0.9 * len(settled))] <= 1.0


def test_a_mix_that_shifts_to_prompts_moves_workers_from_decode_to_prefill_and_starts_none() -> None:
    spec = SPEC.model_copy(update={"max_workers": 5})
    cluster = SimulatedCluster(spec, {"prefill": 2, "decode": 3})
    cluster.run(lambda second: CHAT if second < 300 else CODE, 900)
    assert [type(verdict) for _, verdict in cluster.verdicts if not isinstance(verdict, AtLimit)] == [RoleChange]
    assert cluster.sizes["prefill"] + cluster.sizes["decode"] == 5
    assert cluster.sizes["prefill"] >= 4


def test_without_role_change_the_pool_that_lacks_workers_says_that_it_may_not_grow() -> None:
    spec = SPEC.model_copy(update={"max_workers": 5, "role_change": False, "down_after_s": 3600.0})
    cluster = SimulatedCluster(spec, {"prefill": 2, "decode": 3})
    cluster.run(lambda second: CHAT if second < 300 else CODE, 900)
    assert cluster.sizes == {"prefill": 2, "decode": 3}
    verdicts = [verdict for _, verdict in cluster.verdicts]
    assert verdicts
    assert all(isinstance(verdict, AtLimit) and verdict.role == "prefill" for verdict in verdicts)


def test_a_pool_never_leaves_its_limits() -> None:
    spec = SPEC.model_copy(update={"prefill": PoolLimits(min=2, max=3)})
    cluster = SimulatedCluster(spec, {"prefill": 2, "decode": 2})
    cluster.run(lambda second: Load(30.0 if second < 600 else 0.5, 200, 20), 1500)
    sizes = [
        verdict.after for _, verdict in cluster.verdicts if isinstance(verdict, Resize) and verdict.role == "prefill"
    ]
    assert sizes == [3, 2]
