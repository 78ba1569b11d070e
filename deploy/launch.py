"""One cluster brought up, step by step, and undone from whatever step it reached.

It is up when a real generation has come back through the proxy, not before.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic, sleep, time

from cluster.spec import ControllerSettings
from deploy.cluster_access import ClusterAccess, write_operator_key
from deploy.cluster_folder import keep_logs, make_folder
from deploy.cluster_ports import listening_hosts, wanted_ports, with_ports
from deploy.cluster_state import (
    CLUSTER_VARIABLE,
    START_BESIDE,
    ClusterExistsError,
    ClusterState,
    StateFileError,
    StateStore,
)
from deploy.config import DeployConfig
from deploy.context_check import check_context
from deploy.control_client import ControlClient, ControllerUnreachableError
from deploy.inference_client import Generation, GenerationFailedError, text_request
from deploy.launch_error import LaunchError
from deploy.launched_controller import start_controller
from deploy.launched_proxy import is_ready, proxy_spec, reachable, stop_timeout_s
from deploy.model_store import default_cache_dir, resolve_model
from deploy.port_check import check_ports
from deploy.processes import reference
from deploy.prometheus import start_prometheus
from deploy.ray_head import RayHead
from deploy.security_check import check_security
from deploy.tear_down import tear_down
from rpc import control_pb2
from security.address import join_host_port

PROXY_TIMEOUT_S = 60.0
FIRST_GENERATION_TIMEOUT_S = 120.0
POLL_S = 0.1
MOST_PROXY_STARTS = 2


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    name: str
    config_file: Path
    config: DeployConfig
    with_prometheus: bool


class Launch:
    """Maintains the cluster's state file from the first step on. `say` shows the step to whoever waits."""

    def __init__(
        self,
        options: LaunchOptions,
        store: StateStore,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        hurried: Event,
    ) -> None:
        self._options = options
        self._store = store
        check_ports(listening_hosts(options.config), store)
        self._config = with_ports(options.config)
        self._environment = environment
        self._say = say
        self._hurried = hurried  # set: what runs is not waited for when it is undone
        self._mark = secrets.token_hex(8)
        self._folder = make_folder()

    def run(self) -> ClusterState:
        """The state of a cluster that answers. Call `undo` after whatever this raises.

        Raises LaunchError, and ClusterExistsError, PortTakenError, ModelStoreError and RayStartError of the steps.
        """
        self._make_room()
        self._say(f"model {self._config.cluster.model}")
        model_dir = resolve_model(self._config.cluster.model, default_cache_dir(self._environment))
        check_context(self._config.cluster, model_dir)
        check_security(self._config)
        return self._start(self._claim(), model_dir)

    def undo(self) -> None:
        """Ends what this launch started, if anything; another cluster of the same name is left alone."""
        with suppress(StateFileError):  # then it is not this launch's
            state = self._store.find(self._options.name)
            if state is not None and state.mark == self._mark:
                self._say(f"ending: up to {state.drain_timeout_s:g} s for what runs; Ctrl-C again ends it now")
                tear_down(state, self._store, self._hurried)
        shutil.rmtree(self._folder, ignore_errors=True)

    def keep_logs(self) -> Path | None:
        """Where they are after `undo`; None when nothing was logged."""
        return keep_logs(self._folder, self._store.kept_logs(self._options.name))

    def _make_room(self) -> None:
        """The name and the ports must be free. What a crash left of this name is removed."""
        left = self._store.find(self._options.name)
        if left is not None and left.is_alive:
            doing = "runs" if left.is_up else "is being started"
            raise ClusterExistsError(
                f"the cluster {left.name!r} {doing} already: `pdserve down --name {left.name}` ends it, "
                f"`{START_BESIDE}` starts one beside it"
            )
        if left is not None:
            self._say(f"removing what is left of an earlier {left.name!r}")
            tear_down(left, self._store, self._hurried)
        check_ports(wanted_ports(self._config, with_prometheus=self._options.with_prometheus), self._store)

    def _claim(self) -> ClusterState:
        state = ClusterState(
            name=self._options.name,
            mark=self._mark,
            folder=str(self._folder),
            model=self._config.cluster.model_name,
            config=str(self._options.config_file),
            host=reachable(self._config.proxy.host),
            controller_address=join_host_port(self._config.cluster.host, self._config.cluster.controller_port),
            controller_port=self._config.cluster.controller_port,
            grpc_port=self._config.proxy.grpc_port,
            http_port=self._config.proxy.http_port,
            prometheus_port=self._config.prometheus.port if self._options.with_prometheus else None,
            drain_timeout_s=self._config.proxy.drain_timeout_s,
            shutdown_timeout_s=stop_timeout_s(self._config.proxy) + 20.0,
            started_at=time(),
            launcher=reference(os.getpid()),
            ray_address=self._config.ray.address or "",
            owns_ray=self._config.ray.address is None,
            has_proxy=self._starts_proxy,
            tls=_text(self._config.cluster.tls),
            tls_cert=_text(self._config.proxy.tls_cert),
            keys_file=_text(self._config.proxy.keys_file),
            operator_key_file=_text(self._operator_key_file),
        )
        self._store.claim(state)
        return state

    @property
    def _starts_proxy(self) -> bool:
        return self._config.cluster.starts_proxy

    @property
    def _operator_key_file(self) -> Path | None:
        """Of the commands that follow; None where there are no keys."""
        return None if self._config.proxy.keys_file is None else self._folder / "operator_key"

    def _start(self, state: ClusterState, model_dir: Path) -> ClusterState:
        if self._operator_key_file is not None:
            write_operator_key(self._operator_key_file)
        cluster = self._config.cluster
        environment = {**self._environment, CLUSTER_VARIABLE: state.mark}
        if state.owns_ray:
            self._say("starting Ray")
            head = RayHead(self._folder, environment, cluster.host, self._config.ray)
            process, ray_address = head.start()
            state, environment = self._store.update(state, head=process, ray_address=ray_address), head.environment
        self._say_what_is_awaited(state)
        start_controller(self._controller_settings(model_dir), self._config, state, self._store, environment)
        if self._options.with_prometheus:
            state = self._store.update(state, prometheus=start_prometheus(state, environment))
        access = ClusterAccess.of(state)
        with ControlClient(state.controller_address, access.inside) as client:
            self._wait_for_workers(client, state)
            if cluster.starts_proxy:
                self._say("waiting for a first generation")
                self._wait_for_proxy(client, state, access)
                self._generate_once(state, access)
        return self._store.update(state, is_up=True)

    def _say_what_is_awaited(self, state: ClusterState) -> None:
        num_others = self._config.cluster.num_nodes - 1
        if num_others == 0:
            self._say("starting the controller")
        elif state.owns_ray:
            self._say(
                f"waiting for {num_others} more machines; on each: pdserve join {state.ray_address} "
                f"--token-file FILE, a copy of {self._folder}/auth_token"
            )
        else:
            self._say(f"waiting for the Ray at {state.ray_address} to have {num_others + 1} machines")

    def _controller_settings(self, model_dir: Path) -> ControllerSettings:
        return ControllerSettings(
            spec=self._config.cluster,
            model_dir=str(model_dir),
            proxy=proxy_spec(self._config, model_dir, self._operator_key_file) if self._starts_proxy else None,
            log_dir=str(self._folder / "logs"),
            state_dir=str(self._folder),
        )

    def _wait_for_workers(self, client: ControlClient, state: ClusterState) -> None:
        wanted = sum(self._config.cluster.desired.values())
        try:
            for _ in client.changes(self._config.cluster.start_timeout_s):
                workers = client.list_workers().workers
                states = [info.member.state for info in workers]
                for info in workers:
                    if info.member.state == control_pb2.WORKER_FAILED:
                        raise LaunchError.of(state, info.member.worker, info.last_error)
                num_ready = states.count(control_pb2.WORKER_READY)
                self._say(f"starting workers: {num_ready} of {wanted} ready")
                if num_ready >= wanted:
                    return
        except ControllerUnreachableError as error:
            raise LaunchError.of(state, "controller", str(error)) from error
        raise LaunchError(f"the workers did not start within {self._config.cluster.start_timeout_s:g} s")

    def _wait_for_proxy(self, client: ControlClient, state: ClusterState, access: ClusterAccess) -> None:
        deadline = monotonic() + PROXY_TIMEOUT_S
        while not is_ready(state.http_url, access.proxy_context):
            info = client.server_info()
            if info.num_proxy_restarts >= MOST_PROXY_STARTS or monotonic() > deadline:
                error = info.proxy_last_error or f"the proxy was not ready within {PROXY_TIMEOUT_S:g} s"
                raise LaunchError.of(state, "proxy", error)
            sleep(POLL_S)

    def _generate_once(self, state: ClusterState, access: ClusterAccess) -> None:
        request = text_request("Hello", max_tokens=2, temperature=0.0)
        try:
            for _ in Generation(state.grpc_address, request, FIRST_GENERATION_TIMEOUT_S, access):
                pass
        except GenerationFailedError as error:
            raise LaunchError.of(state, "proxy", f"the first generation failed: {error}") from error


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
