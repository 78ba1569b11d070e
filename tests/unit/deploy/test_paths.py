"""What `pdserve status` says of how KV gets from worker to worker."""

from __future__ import annotations

from deploy.cluster_report import path_parts
from rpc import control_pb2, worker_pb2


def member(
    name: str, role: worker_pb2.Role, transports: list[str], state: int = control_pb2.WORKER_READY
) -> control_pb2.Member:
    return control_pb2.Member(worker=name, incarnation=name, role=role, transports=transports, state=state)  # type: ignore[arg-type]


def test_each_pair_that_is_ready_has_its_path() -> None:
    members = [
        member("prefill-0", worker_pb2.ROLE_PREFILL, ["nccl", "nixl"]),
        member("prefill-1", worker_pb2.ROLE_PREFILL, ["nccl"], control_pb2.WORKER_DRAINING),
        member("decode-0", worker_pb2.ROLE_DECODE, ["nixl"]),
        member("decode-1", worker_pb2.ROLE_DECODE, ["gloo"]),
        member("mixed-0", worker_pb2.ROLE_MIXED, ["nccl", "nixl"]),
    ]
    assert [(part["prefill"], part["decode"], part["transport"]) for part in path_parts(members)] == [
        ("prefill-0", "decode-0", "nixl"),
        ("prefill-0", "decode-1", None),
        ("prefill-0", "mixed-0", "nccl"),
    ]
