"""What an autoscaler cannot be told."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cluster.autoscale.spec import AutoscaleSpec
from cluster.spec import ClusterSpec


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prefill": {"min": 3, "max": 2}}, "min 3 is above max 2"),
        ({"window_s": 8, "every_s": 5}, "at least twice every_s"),
        ({"max_workers": 2, "decode": {"min": 2}}, "less than prefill.min [+] decode.min, 3"),
        ({"quantile": 1.0}, "quantile"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AutoscaleSpec.model_validate(wrong)


@pytest.mark.parametrize(
    ("pools", "autoscale", "message"),
    [
        ({"prefill": 1, "decode": 1, "mixed": 1}, {}, "pools.mixed.replicas is 1"),
        ({"prefill": 0, "decode": 1}, {}, "pools.prefill.replicas 0 is not from autoscale.prefill.min 1"),
        ({"prefill": 1, "decode": 5}, {}, "pools.decode.replicas 5 is not"),
        ({"prefill": 2, "decode": 2}, {"max_workers": 3}, "is 4, above autoscale.max_workers 3"),
    ],
)
def test_pools_that_could_not_be_scaled_so_are_refused_unless_it_is_off(
    pools: dict[str, int], autoscale: dict[str, object], message: str
) -> None:
    replicas = {role: {"replicas": number} for role, number in pools.items()}
    with pytest.raises(ValidationError, match=message):
        ClusterSpec.model_validate({"pools": replicas, "autoscale": {"enabled": True, **autoscale}})
    ClusterSpec.model_validate({"pools": replicas, "autoscale": {"enabled": False, **autoscale}})
