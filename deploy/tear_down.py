"""One cluster ended: what runs may finish, then every process, file and state of it goes.

Each step has a deadline and the next is taken whatever came of it; it may be called twice. A hurry ends the wait for
what runs; the rest is always done.
"""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from time import monotonic

from deploy.cluster_access import ClusterAccess
from deploy.cluster_state import CLUSTER_VARIABLE, ClusterState, StateStore
from deploy.control_client import ControlClient
from deploy.errors import CommandError
from deploy.processes import ProcessReference, in_sessions, marked
from deploy.ray_process import STOP_TIMEOUT_S

logger = logging.getLogger(__name__)
HURRY_POLL_S = 0.1  # a signal is heard between two of these
LEAVE_TIMEOUT_S = 60.0
RAY_TIMEOUT_S = 3.0
LEFTOVER_TIMEOUT_S = 3.0  # Ray's workers notice by themselves that their node is gone


def tear_down(state: ClusterState, store: StateStore, hurried: threading.Event) -> None:
    asking = threading.Thread(target=_ask, args=(state,), daemon=True)
    if not state.owns_ray or (state.head is not None and state.head.is_alive):
        _shut_down(asking, hurried)
    if not state.owns_ray:
        _leave_ray(state)
    if state.head is not None:
        state.head.stop(STOP_TIMEOUT_S)
    if state.prometheus is not None:
        state.prometheus.stop(STOP_TIMEOUT_S)
    end_leftovers(state.mark, state.head)
    if asking.is_alive():  # nobody is left to answer; an exit must not find it inside gRPC
        asking.join(LEFTOVER_TIMEOUT_S)
    shutil.rmtree(state.folder, ignore_errors=True)
    store.forget(state.name)


def _shut_down(asking: threading.Thread, hurried: threading.Event) -> None:
    """Asks the controller; one that does not answer, or not before there is a hurry, is ended with the rest."""
    asking.start()
    while asking.is_alive() and not hurried.is_set():
        asking.join(HURRY_POLL_S)


def _leave_ray(state: ClusterState) -> None:
    """Ends what of this cluster is left on a Ray that goes on; one that does not answer is left alone."""
    host, _, port = state.ray_address.rpartition("/")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), RAY_TIMEOUT_S).close()
    except OSError as error:
        logger.warning("the Ray at %s is not there any more: %s", state.ray_address, error)
        return
    command = [sys.executable, "-m", "deploy.end_controller", state.ray_address, state.namespace]
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=LEAVE_TIMEOUT_S, check=False)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()[-1:]
            logger.warning("the Ray at %s was not asked to forget the cluster: %s", state.ray_address, *said or ["?"])


def _ask(state: ClusterState) -> None:
    with suppress(CommandError), ControlClient(state.controller_address, ClusterAccess.of(state).inside) as client:
        client.shut_down(state.shutdown_timeout_s)


def end_leftovers(mark: str, ray: ProcessReference | None) -> None:
    """Every process that carries the mark, or shares a session with one or with `ray`, as Ray's agents do: they
    overwrite their environment with a title, and outlive a head that was killed."""
    deadline = monotonic() + LEFTOVER_TIMEOUT_S
    with_mark = marked(CLUSTER_VARIABLE, mark)
    leaders = with_mark if ray is None else [*with_mark, ray]
    for process in {*with_mark, *in_sessions(leaders)}:
        process.wait(max(0.0, deadline - monotonic()))
        process.stop(LEFTOVER_TIMEOUT_S)
