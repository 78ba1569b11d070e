"""Real workers and a real proxy as plain processes, under a controller that says just what a test tells it.

What Ray adds is tested in test_cluster.py; here a fault can be put at one process without anything healing it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import httpx

import proxy.__main__
from bench.busy_gauges import BUSY
from bench.metric_sum import metric_sum
from cluster.roles import ROLES, RoleName
from deploy.ports import free_ports
from rpc import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc
from security.address import join_host_port
from security.cluster_tls import ClusterTls
from security.pinned import pinned_context
from tests import plain_http
from tests.hosts import HERE, Host
from tests.integration import worker_main
from tests.integration.fork_server import ForkedProcess, Say

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 60.0


class StaticController(control_pb2_grpc.MembershipServicer):
    """Tells every proxy the members it was given, and again after each change."""

    def __init__(self, host: str, tls: Path | None) -> None:
        self._members: list[control_pb2.Member] = []
        self._pool_nodes: list[control_pb2.Member] = []
        self._version = 1
        self._changed = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(8))
        control_pb2_grpc.add_MembershipServicer_to_server(self, self._server)
        credentials = ClusterTls.read(tls).server
        listen = self._server.add_insecure_port if credentials is None else self._server.add_secure_port
        port = listen(join_host_port(host, 0), *([] if credentials is None else [credentials]))
        self.address = join_host_port(host, port)
        self._server.start()

    def set_members(self, members: list[control_pb2.Member], pool_nodes: Sequence[control_pb2.Member] = ()) -> None:
        with self._changed:
            self._members, self._pool_nodes = list(members), list(pool_nodes)
            self._version += 1
            self._changed.notify_all()

    def Watch(  # noqa: N802
        self, request: control_pb2.WatchRequest, context: grpc.ServicerContext
    ) -> Iterator[control_pb2.Members]:
        told = 0
        while context.is_active():
            with self._changed:
                if self._version == told:
                    self._changed.wait(timeout=0.2)
                    continue
                told = self._version
                members = control_pb2.Members(
                    version=told,
                    controller_incarnation="static",
                    members=self._members,
                    pool_nodes=self._pool_nodes,
                )
            yield members

    def stop(self) -> None:
        self._server.stop(0).wait()


def run_on(host: Host, run: Callable[[str, Say], None], argument: str, say: Say) -> None:
    if host.namespace:
        host.enter()
    run(argument, say)


def run_proxy(arguments: str, say: Say) -> None:
    sys.argv = ["proxy", *json.loads(arguments)]
    proxy.__main__.main()


@dataclass
class WorkerProcess:
    name: str
    role: RoleName
    process: ForkedProcess
    addresses: dict[str, Any]
    host: Host = HERE

    def member(self) -> control_pb2.Member:
        return control_pb2.Member(
            worker=self.name,
            incarnation=self.addresses["incarnation"],
            role=ROLES[self.role],
            role_epoch=1,
            state=control_pb2.WORKER_READY,
            address=self.addresses["grpc"],
            metrics_address=self.addresses["metrics"],
            node=self.addresses["node"],
            transports=self.addresses["transports"],
        )

    @property
    def port(self) -> int:
        return int(self.addresses["grpc"].rpartition(":")[2])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        return metric_sum(self._metrics(), name, labels)

    @property
    def is_idle(self) -> bool:
        """No request, no used or leased block, no busy slot."""
        text = self._metrics()
        return not any(metric_sum(text, name, labels) for name, labels in BUSY)

    def _metrics(self) -> str:
        return plain_http.get(f"http://{self.addresses['metrics']}/metrics", timeout=10).text


@dataclass
class Processes:
    """Maintains everything it started until the end of the `with` block, or `stop`."""

    model_dir: Path
    log_dir: Path
    engine: dict[str, Any] = field(default_factory=dict)
    kv_transfer: dict[str, Any] = field(default_factory=dict)
    workers: list[WorkerProcess] = field(default_factory=list)
    pool_nodes: list[WorkerProcess] = field(default_factory=list)
    own_address: str = HERE.address  # by which the hosts reach this process
    tls: Path | None = None  # certificates, for what is inside and for the proxy's ports

    def __post_init__(self) -> None:
        self.controller = StaticController(self.own_address, self.tls)
        self.http = ""
        self.grpc = ""
        self._proxy: ForkedProcess | None = None

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_worker(self, role: RoleName, name: str = "", host: Host = HERE, **fields: Any) -> WorkerProcess:
        name = name or f"{role}-{sum(1 for w in self.workers if w.role == role)}"
        spec = {
            "name": name,
            "role": role,
            "incarnation": f"{name}-{os.urandom(4).hex()}",
            "model_dir": str(self.model_dir),
            "model_name": "test",
            "host": host.address,
            "engine": self.engine,
            "kv_transfer": self._transfer(host),
        } | fields
        worker = self._start(spec, host)
        self.workers.append(worker)
        self.publish()
        return worker

    def _transfer(self, host: Host) -> dict[str, Any]:
        """Here only over loopback, as a cluster on one machine: another test's network comes and goes."""
        is_alone = host is HERE and self.own_address == HERE.address
        return ({"ucx_net_devices": "lo"} if is_alone else {}) | self.kv_transfer

    def start_pool_node(self, name: str = "", host: Host = HERE, **pool: Any) -> WorkerProcess:
        """`pool`: fields of PoolConfig."""
        name = name or f"pool-{len(self.pool_nodes)}"
        spec = {
            "name": name,
            "role": "pool",
            "incarnation": f"{name}-{os.urandom(4).hex()}",
            "model_dir": str(self.model_dir),
            "model_name": "test",
            "host": host.address,
            "engine": self.engine,
            "kv_transfer": self._transfer(host),
            "pool": {"ram_bytes": 4 << 20} | pool,
        }
        node = self._start(spec, host)
        self.pool_nodes.append(node)
        self.publish()
        return node

    def end_pool_node(self, node: WorkerProcess) -> None:
        """Kills it, and proxies hear of it."""
        node.kill()
        self.pool_nodes.remove(node)
        self.publish()

    def _start(self, spec: dict[str, Any], host: Host) -> WorkerProcess:
        spec = spec if self.tls is None else spec | {"tls": str(self.tls)}
        log = self.log_dir / f"{spec['incarnation']}.log"
        described = json.dumps(spec)
        process = ForkedProcess(partial(run_on, host, worker_main.run), described, log)
        addresses = process.read()
        assert addresses, f"{spec['name']} did not start:\n{log.read_text()[-3000:]}"
        return WorkerProcess(spec["name"], spec["role"], process, json.loads(addresses), host)

    def start_workers(self, prefill: int = 1, decode: int = 1) -> None:
        with ThreadPoolExecutor(prefill + decode) as pool:
            starting = [pool.submit(self.start_worker, "prefill", f"prefill-{n}") for n in range(prefill)]
            starting += [pool.submit(self.start_worker, "decode", f"decode-{n}") for n in range(decode)]
            for started in starting:
                started.result()

    def replace(self, worker: WorkerProcess) -> WorkerProcess:
        """What the controller does after a death: the same worker as a new incarnation."""
        self.workers.remove(worker)
        return self.start_worker(worker.role, worker.name, worker.host)

    def publish(self) -> None:
        self.controller.set_members(
            [worker.member() for worker in self.workers], [node.member() for node in self.pool_nodes]
        )

    def start_proxy(self, *arguments: str, host: Host = HERE) -> None:
        http_port, grpc_port = free_ports([""] * 2)
        self.http = f"http://{join_host_port(host.address, http_port)}"
        self.grpc = join_host_port(host.address, grpc_port)
        options = {
            "controller": self.controller.address,
            "host": host.address,
            "model-dir": self.model_dir,
            "model-name": "test",
            "http-port": http_port,
            "grpc-port": grpc_port,
            "local-prefill": "if_needed",  # a test's few tokens are handed over too, unless it says otherwise
        }
        if self.tls is not None:
            self.http = self.http.replace("http:", "https:")
            options |= {"cluster-tls": self.tls, "tls-cert": self.certificate, "tls-key": self.tls / "server.key"}
        given = [*(f"--{key}={value}" for key, value in options.items()), *arguments]
        log = self.log_dir / "proxy.log"
        self._proxy = ForkedProcess(partial(run_on, host, run_proxy), json.dumps(given), log)
        wait_until(self.is_ready, START_TIMEOUT_S)

    def kill_proxy(self) -> None:
        assert self._proxy is not None
        self._proxy.kill()
        self._proxy.wait()

    @property
    def proxy_pid(self) -> int:
        assert self._proxy is not None
        return self._proxy.pid

    @property
    def certificate(self) -> Path:
        """That clients of the proxy see."""
        assert self.tls is not None
        return self.tls / "server.crt"

    def is_ready(self) -> bool:
        trust = pinned_context(self.certificate) if self.tls else False
        try:
            return httpx.get(f"{self.http}/ready", timeout=2, verify=trust).status_code == 200
        except httpx.TransportError:
            return False

    def worker(self, name: str) -> WorkerProcess:
        return next(worker for worker in self.workers if worker.name == name)

    def complete(self, prompt: str | list[int], max_tokens: int = 8, **fields: Any) -> httpx.Response:
        body = {"model": "test", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **fields}
        return plain_http.post(f"{self.http}/v1/completions", json=body, timeout=60)

    def text(self, prompt: str | list[int], max_tokens: int = 8) -> str:
        response = self.complete(prompt, max_tokens)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    def generate(
        self,
        prompt: list[int],
        max_tokens: int,
        request_id: str = "",
        on_first_token: Callable[[], None] = lambda: None,
        kv_mode: str | None = None,
    ) -> tuple[list[int], inference_pb2.Finished]:
        """Greedy, past any end of text, over gRPC: the token ids and how it ended."""
        metadata = [("x-kv-mode", kv_mode)] if kv_mode is not None else []
        sampling = inference_pb2.Sampling(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        token_ids = inference_pb2.TokenIds(ids=prompt)
        request = inference_pb2.GenerateRequest(request_id=request_id, token_ids=token_ids, sampling=sampling)
        ids: list[int] = []
        finished = inference_pb2.Finished()
        with grpc.insecure_channel(self.grpc) as channel:
            for response in inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=120, metadata=metadata):
                if response.token.ids and not ids:
                    on_first_token()
                ids += response.token.ids
                finished = response.finished
        return ids, finished

    def wait_idle(self, timeout_s: float = 40.0) -> None:
        """The NO-LEAK condition, on every worker that lives."""
        wait_until(lambda: all(w.is_idle for w in self.workers if w.process.poll() is None), timeout_s)

    def stop(self) -> None:
        processes = [process.process for process in (*self.workers, *self.pool_nodes)]
        processes += [self._proxy] if self._proxy else []
        for process in processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.controller.stop()


def metric_value(url: str, name: str, **labels: str) -> float:
    return metric_sum(plain_http.get(url, timeout=10).text, name, labels)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Asks twenty times a second; there is no event to wait for across processes."""
    ended = threading.Event()
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not true within {timeout_s:g} s"
        ended.wait(0.05)
