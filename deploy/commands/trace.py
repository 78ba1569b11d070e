"""`pdserve trace`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from deploy.cluster_access import ClusterAccess
from deploy.cluster_state import ClusterState, default_store
from deploy.control_client import ControlClient
from deploy.errors import CommandError
from deploy.trace.cluster_trace import cluster_trace
from deploy.trace.recorder import Recorder, Target
from deploy.trace.trace import Trace
from rpc import control_pb2

FIND_TIMEOUT_S = 10.0
ANSWERING = (control_pb2.WORKER_READY, control_pb2.WORKER_DRAINING)


def run(name: str, seconds: float, last: float | None, output: Path) -> None:
    console = Console(highlight=False)
    trace = record(name, seconds, last, console)
    num_events = save(trace, output, name)
    what = f"{num_events} events of {len(trace.processes)} processes"
    console.print(f"{output}: {what}; open it in ui.perfetto.dev", markup=False, soft_wrap=True)


def record(name: str, seconds: float, last: float | None, console: Console) -> Trace:
    """The next `seconds` of the cluster, or the `last` ones. Raises CommandError when nobody answers."""
    state = default_store(os.environ).read(name)

    def warn(message: str) -> None:
        console.print(f"warning: {message}", style="yellow", markup=False, soft_wrap=True)

    with ControlClient(state.controller_address, ClusterAccess.of(state).inside) as client:
        recorder = Recorder(_finder(client, state), warn)
        if last is not None:
            recordings = recorder.last(last)
        else:
            with console.status(f"recording for {seconds:g} s …"):
                recordings = recorder.follow(seconds)
    if not recordings:
        raise CommandError(f"no process of {name} answered: see pdserve status")
    return cluster_trace(recordings)


def save(trace: Trace, output: Path, name: str) -> int:
    """The number of events. Raises CommandError."""
    try:
        return trace.save(output, cluster=name)
    except OSError as error:
        raise CommandError(f"{output} cannot be written: {error.strerror}") from error


def _finder(client: ControlClient, state: ClusterState) -> Callable[[], list[Target]]:
    access = ClusterAccess.of(state)

    def find() -> list[Target]:
        """The proxy, and whoever of the workers has an address."""
        members = next(client.changes(FIND_TIMEOUT_S)).members
        workers = [Target(m.worker, m.address, access.inside) for m in members if m.state in ANSWERING and m.address]
        return [Target("proxy", state.grpc_address, access.proxy, access.metadata), *workers]

    return find
