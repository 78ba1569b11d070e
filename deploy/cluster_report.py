"""What `pdserve status --json` prints: one cluster as plain values.

A controller that does not answer leaves its part empty and says so; the rest is what the state file knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from deploy.cluster_access import ClusterAccess
from deploy.cluster_state import ClusterState
from deploy.control_client import ControlClient, ControllerUnreachableError
from proxy.routing.transport_choice import choose_path
from rpc import control_pb2, worker_pb2


class ClusterPart(TypedDict):
    name: str
    model: str
    state: str  # starting | running | ended
    config: str
    started_at: float
    ray_address: str
    has_proxy: bool  # of its own
    log_dir: str


class ControllerPart(TypedDict):
    address: str
    incarnation: str
    pid: int | None
    uptime_s: float
    error: str  # empty when it answers


class ProxyPart(TypedDict):
    http: str
    grpc: str
    pid: int | None  # None: not running now
    restarts: int
    last_error: str


class LoadPart(TypedDict):
    running: int
    waiting: int
    queued_tokens: int
    blocks: int
    free_blocks: int
    admitting: bool
    stuck: bool  # its engine does not turn


class WorkerPart(TypedDict):
    name: str
    role: str
    group: str  # of its pool; empty where the pool has none
    node: str
    state: str
    incarnation: str
    address: str
    metrics_address: str
    pid: int | None
    uptime_s: float
    restarts: int
    kv_usage: float | None  # None while it does not answer
    load: LoadPart | None
    last_error: str


class PathPart(TypedDict):
    """How KV gets from one worker to another."""

    prefill: str
    decode: str
    transport: str | None  # None: it does not, and the decode worker computes prompts itself


class ClusterReport(TypedDict):
    cluster: ClusterPart
    controller: ControllerPart
    proxy: ProxyPart
    desired: dict[str, int]
    most: dict[str, int]  # what a pool's groups have room for; without those that have no limit
    workers: list[WorkerPart]
    paths: list[PathPart]  # of the workers that are ready


def cluster_report(state: ClusterState) -> ClusterReport:
    info, listed, error = control_pb2.ServerInfo(), control_pb2.ListWorkersResponse(), ""
    try:
        with ControlClient(state.controller_address, ClusterAccess.of(state).inside) as client:
            info, listed = client.server_info(), client.list_workers()
    except ControllerUnreachableError as unreachable:
        error = str(unreachable)
    return {
        "cluster": _cluster(state),
        "controller": {
            "address": state.controller_address,
            "incarnation": info.controller_incarnation,
            "pid": info.pid or None,
            "uptime_s": round(info.uptime_s, 1),
            "error": error,
        },
        "proxy": {
            "http": state.http_url,
            "grpc": state.grpc_address,
            "pid": info.proxy_pid or None,
            "restarts": info.num_proxy_restarts,
            "last_error": info.proxy_last_error,
        },
        "desired": dict(listed.desired),
        "most": dict(listed.most),
        "workers": [worker_part(worker) for worker in listed.workers],
        "paths": path_parts([worker.member for worker in listed.workers]),
    }


def worker_part(info: control_pb2.WorkerInfo) -> WorkerPart:
    member = info.member
    answers = info.pid != 0
    return {
        "name": member.worker,
        "role": worker_pb2.Role.Name(member.role).removeprefix("ROLE_").lower(),
        "group": member.group,
        "node": member.node,
        "state": control_pb2.WorkerState.Name(member.state).removeprefix("WORKER_").lower(),
        "incarnation": member.incarnation,
        "address": member.address,
        "metrics_address": member.metrics_address,
        "pid": info.pid or None,
        "uptime_s": round(info.uptime_s, 1),
        "restarts": info.num_restarts,
        "kv_usage": round(info.kv_usage, 4) if answers else None,
        "load": _load(info.load) if answers else None,
        "last_error": info.last_error,
    }


def path_parts(members: Sequence[control_pb2.Member]) -> list[PathPart]:
    """What the proxy chooses for each pair, as long as nothing fails."""
    ready = [member for member in members if member.state == control_pb2.WORKER_READY]
    parts: list[PathPart] = []
    for prefill in (member for member in ready if member.role == worker_pb2.ROLE_PREFILL):
        for decode in (member for member in ready if member.role in (worker_pb2.ROLE_DECODE, worker_pb2.ROLE_MIXED)):
            path = choose_path(prefill, decode, frozenset())
            transport = path.transport if path is not None else None
            parts.append({"prefill": prefill.worker, "decode": decode.worker, "transport": transport})
    return parts


def _cluster(state: ClusterState) -> ClusterPart:
    alive = "running" if state.is_up else "starting"
    return {
        "name": state.name,
        "model": state.model,
        "state": alive if state.is_alive else "ended",
        "config": state.config,
        "started_at": state.started_at,
        "ray_address": state.ray_address,
        "has_proxy": state.has_proxy,
        "log_dir": str(state.log_dir),
    }


def _load(load: worker_pb2.Load) -> LoadPart:
    return {
        "running": load.num_running,
        "waiting": load.num_waiting,
        "queued_tokens": load.num_queued_tokens,
        "blocks": load.num_blocks,
        "free_blocks": load.num_free_blocks,
        "admitting": load.admitting,
        "stuck": load.stuck,
    }
