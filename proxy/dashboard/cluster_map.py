"""Who is in the cluster and how each does, as this proxy knows it: from the membership, its links, and load reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from proxy.dashboard.sample import Pair
from proxy.fronts.http_status import ROLE_NAMES
from proxy.request.lifecycle import Lifecycle, Phase
from proxy.workers.worker_link import WorkerLink
from proxy.workers.worker_pool import WorkerPool
from rpc import control_pb2, worker_pb2

STATES = {
    control_pb2.WORKER_STARTING: "starting",
    control_pb2.WORKER_READY: "ready",
    control_pb2.WORKER_DRAINING: "draining",
    control_pb2.WORKER_FAILED: "failed",
}


def workers(pool: WorkerPool) -> list[dict[str, Any]]:
    """In the membership's order."""
    return [_worker(member, pool.link(member.incarnation)) for member in pool.members]


def pool_nodes(pool: WorkerPool) -> list[dict[str, Any]]:
    """Of the KV pool."""
    return [_member(node, STATES.get(node.state, "unknown")) for node in pool.pool_nodes]


def handoffs(running: Iterable[Lifecycle], done: Mapping[Pair, int]) -> list[dict[str, Any]]:
    """Who transfers to whom: under way now, and `done` of late; the busiest pair first."""
    under_way: Counter[Pair] = Counter()
    for choice in running:
        if choice.phase in (Phase.PREFILLING, Phase.TRANSFERRING) and (pair := Pair.of(choice)) is not None:
            under_way[pair] += 1
    pairs = sorted({*under_way, *done}, key=lambda pair: (-under_way[pair] - done.get(pair, 0), pair.prefill))
    return [
        {
            "prefill": pair.prefill,
            "decode": pair.decode,
            "transport": pair.transport,
            "num_now": under_way[pair],
            "num_minute": done.get(pair, 0),
        }
        for pair in pairs
    ]


def _worker(member: control_pb2.Member, link: WorkerLink | None) -> dict[str, Any]:
    load = (link.tally.load if link is not None else None) or worker_pb2.Load()
    return {
        **_member(member, _state(member, link)),
        "transports": list(member.transports),
        "num_own": link.num_requests if link is not None else 0,
        "num_running": load.num_running,
        "num_waiting": load.num_waiting,
        "num_queued_tokens": load.num_queued_tokens,
        "num_blocks": load.num_blocks,
        "kv_usage": 1 - load.num_free_blocks / load.num_blocks if load.num_blocks else None,
        "step_s": load.step_s,
        "num_prefill_tokens": load.num_prefill_tokens,
        "num_decode_tokens": load.num_decode_tokens,
    }


def _member(member: control_pb2.Member, state: str) -> dict[str, Any]:
    return {
        "worker": member.worker,
        "incarnation": member.incarnation,
        "role": ROLE_NAMES.get(member.role, "unknown"),
        "state": state,
        "node": member.node,
        "address": member.address,
    }


def _state(member: control_pb2.Member, link: WorkerLink | None) -> str:
    """The membership's word, or what this proxy knows better."""
    said = STATES.get(member.state, "unknown")
    if said not in ("ready", "draining"):
        return said
    if link is None or not link.is_up:
        return "unreachable" if link is not None and link.was_tried else "connecting"
    if link.tally.load is not None and link.tally.load.stuck:
        return "stuck"
    if link.breaker.advises_against:
        return "failing"
    return said if said == "draining" or link.is_usable else "closed"
