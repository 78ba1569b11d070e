"""Which transport a pair takes, as a table."""

from __future__ import annotations

import pytest

from proxy.routing.transport_choice import Path, choose_path
from rpc import control_pb2


def member(name: str, transports: list[str], node: str = "here") -> control_pb2.Member:
    return control_pb2.Member(worker=name, incarnation=name, node=node, transports=transports)


def over(transport: str) -> Path:
    return Path("P", "D", transport)


@pytest.mark.parametrize(
    ("prefill", "decode", "decode_node", "failed", "expected"),
    [
        (["nccl", "nixl"], ["nccl", "nixl"], "here", [], "nccl"),
        (["nccl", "nixl"], ["nccl", "nixl"], "elsewhere", [], "nixl"),  # NCCL is for one node
        (["nccl", "nixl"], ["nixl"], "here", [], "nixl"),
        (["nixl", "gloo"], ["gloo", "nixl"], "here", [], "nixl"),  # the prefill worker's order
        (["nccl", "nixl"], ["nccl", "nixl"], "here", ["nccl"], "nixl"),
        (["nccl", "nixl"], ["nccl", "nixl"], "here", ["nccl", "nixl"], "nccl"),
        (["nccl"], ["nccl"], "elsewhere", [], None),
        (["gloo"], ["nixl"], "here", [], None),
    ],
)
def test_a_pair_takes_the_first_common_transport_that_reaches_and_has_not_failed(
    prefill: list[str], decode: list[str], decode_node: str, failed: list[str], expected: str | None
) -> None:
    path = choose_path(member("P", prefill), member("D", decode, decode_node), {over(name) for name in failed})
    assert path == (over(expected) if expected else None)
