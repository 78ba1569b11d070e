"""Which transport a pair of workers hands KV over with: pure, from what the two have registered."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from rpc import control_pb2

ONE_NODE_ONLY = frozenset({"nccl"})  # every other one also reaches a worker elsewhere


@dataclass(frozen=True, slots=True)
class Path:
    """One transport between two incarnations."""

    prefill: str
    decode: str
    transport: str


def paths_between(prefill: control_pb2.Member, decode: control_pb2.Member) -> list[Path]:
    """The prefill worker's preferred one first."""
    return [
        Path(prefill.incarnation, decode.incarnation, name)
        for name in prefill.transports
        if name in decode.transports and (name not in ONE_NODE_ONLY or prefill.node == decode.node)
    ]


def choose_path(prefill: control_pb2.Member, decode: control_pb2.Member, failed: Set[Path]) -> Path | None:
    """The first that has not failed, or else the first again; None when the two have none in common."""
    paths = paths_between(prefill, decode)
    return next((path for path in paths if path not in failed), paths[0] if paths else None)
