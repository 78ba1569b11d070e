"""The end of a cluster on another's Ray: seen by its controller, since no process here is its head."""

from __future__ import annotations

from time import monotonic, sleep

from deploy.cluster_access import ClusterAccess
from deploy.cluster_state import ClusterState
from deploy.control_client import ControlClient, ControllerUnreachableError

GONE_AFTER_S = 60.0  # Ray starts a controller that died again, sooner than that
ASK_EVERY_S = 2.0
STREAM_S = 3600.0


def wait_for_controllers_end(state: ClusterState, gone_after_s: float = GONE_AFTER_S) -> None:
    """Returns when no controller has answered for so long."""
    heard_at = monotonic()
    with ControlClient(state.controller_address, ClusterAccess.of(state).inside) as client:
        while monotonic() - heard_at < gone_after_s:
            try:
                for _ in client.changes(STREAM_S):
                    heard_at = monotonic()
                heard_at = monotonic()
            except ControllerUnreachableError:
                sleep(min(ASK_EVERY_S, gone_after_s))
