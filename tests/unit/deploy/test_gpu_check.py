"""GPUs are counted before workers wait for them."""

from __future__ import annotations

import pytest

from cluster.spec import ClusterSpec
from deploy.gpu_check import GpusMissingError, check_gpus


def spec(prefill: str, decode: str) -> ClusterSpec:
    pools = {
        "prefill": {"replicas": 1, "engine": {"device": prefill}},
        "decode": {"replicas": 2, "engine": {"device": decode}},
    }
    return ClusterSpec.model_validate({"pools": pools})


def test_workers_on_cpus_need_no_gpu() -> None:
    check_gpus(spec("cpu", "cpu"), 0)


def test_each_worker_on_a_gpu_needs_one() -> None:
    check_gpus(spec("cuda", "cuda:0"), 3)
    check_gpus(spec("cuda", "cpu"), 1)
    with pytest.raises(GpusMissingError, match=r"1 prefill \+ 2 decode workers .* finds 2 here: set cluster.engine"):
        check_gpus(spec("cuda", "cuda:0"), 2)
    with pytest.raises(GpusMissingError, match=r"^2 decode workers"):
        check_gpus(spec("cpu", "cuda"), 0)


def test_a_group_on_cpus_needs_none() -> None:
    groups = [{"name": "gpu", "most": 2, "engine": {"device": "cuda"}}, {"name": "cpu"}]
    mixed = ClusterSpec.model_validate({"pools": {"decode": {"replicas": 5, "groups": groups}}})
    check_gpus(mixed, 2)
    with pytest.raises(GpusMissingError, match=r"^2 decode workers"):
        check_gpus(mixed, 1)
