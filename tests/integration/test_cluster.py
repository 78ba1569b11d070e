"""A whole cluster over real Ray, NIXL and gRPC, with a fake model so that workers start quickly.

One cluster serves all tests but the last ones; each leaves it as it found it. That `pdserve down` leaves nothing of a
healthy one is tested with the README.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.fake_model import write_fake_model
from deploy.cluster_report import ClusterReport, WorkerPart, cluster_report
from deploy.cluster_state import CLUSTER_VARIABLE, ClusterState, StateStore
from deploy.dashboards.alerts import ALERTS
from deploy.dashboards.all import DASHBOARDS
from deploy.inference_client import Generation, text_request
from deploy.ports import free_ports
from deploy.processes import ProcessReference, command_of, in_sessions, marked, reference
from engine.config import EngineConfig
from engine.fake_runner import FakeModel
from rpc import control_pb2, control_pb2_grpc
from tests import plain_http
from tests.integration.processes import wait_until
from tests.integration.test_api import expected_text

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

COMMAND_TIMEOUT_S = 120
CHANGE_TIMEOUT_S = 60
PROMPT = "hello there"
LONG = 500  # tokens: a second and more
POOLED = {"x-kv-mode": "pooled", "x-kv-write-back": "true"}
PROMETHEUS = shutil.which("prometheus")
ALONE = ("--prefill", "0", "--decode", "1")  # the one worker that it takes
PDSERVE = str(Path(sys.executable).with_name("pdserve"))


@dataclass(frozen=True)
class Shell:
    """Runs `pdserve` with state of its own, on ports of its own."""

    folder: Path
    ports: tuple[int, int, int, int]

    @property
    def environment(self) -> dict[str, str]:
        nowhere = {"http_proxy": "http://127.0.0.1:1", "no_proxy": ""}  # what is inside a cluster goes through no proxy
        return {**os.environ, **nowhere, "XDG_STATE_HOME": str(self.folder), "COLUMNS": "200"}

    @property
    def store(self) -> StateStore:
        return StateStore(self.folder / "pdserve")

    def up_arguments(self, model: Path) -> list[str]:
        controller, grpc, http, prometheus = self.ports
        settings = [
            f"cluster.controller_port={controller}",
            f"proxy.grpc_port={grpc}",
            f"proxy.http_port={http}",
            f"prometheus.port={prometheus}",
            "proxy.local_prefill=if_needed",  # a few tokens are handed over too
            "cluster.engine.num_blocks=128",
            "cluster.restart.first_delay_s=0.1",
        ]
        arguments = ["up", "--model", str(model)]
        for setting in settings:
            arguments += ["--set", setting]
        return arguments

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PDSERVE, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )


class Cluster:
    """The shared cluster, seen through its commands."""

    def __init__(self, shell: Shell, state: ClusterState, foreground: subprocess.Popen[str]) -> None:
        self.shell = shell
        self.state = state
        self.foreground = foreground

    def report(self) -> ClusterReport:
        """What `pdserve status --json` prints, without starting it."""
        return cluster_report(self.state)

    def workers(self) -> dict[str, WorkerPart]:
        return {worker["name"]: worker for worker in self.report()["workers"]}

    def until(self, holds: Callable[[ClusterReport], bool]) -> ClusterReport:
        """The first report for which it holds."""
        last = self.report()

        def look() -> bool:
            nonlocal last
            last = self.report()
            return holds(last)

        wait_until(look, CHANGE_TIMEOUT_S)
        return last

    def generate(self, prompt: str = PROMPT, num_tokens: int = 8) -> tuple[str, str]:
        """The text, and the path its KV took."""
        request = text_request(prompt, max_tokens=num_tokens, temperature=0.0)
        generation = Generation(self.state.grpc_address, request, 60)
        text = "".join(generation)
        assert generation.finished is not None
        return text, generation.finished.path

    @property
    def is_ready(self) -> bool:
        return plain_http.get(f"{self.state.http_url}/ready", timeout=10).status_code == 200

    @property
    def prometheus(self) -> str:
        return f"http://127.0.0.1:{self.state.prometheus_port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Prometheus's answer now."""
        url = f"{self.prometheus}/api/v1/query"
        answer = plain_http.get(url, params={"query": expression}, timeout=10).raise_for_status().json()
        result: list[dict[str, Any]] = answer["data"]["result"]
        return [series for series in result if series["value"][1] != "NaN"]


def queries() -> list[str]:
    """Of every panel, with Grafana's variables put in, and the number that every alert looks at."""
    variables = {"$__rate_interval": "1m", "$model": ".*", "$ttft": "1.0", "$tpot": "0.1"}
    asked = [query.expr for dashboard in DASHBOARDS for query in dashboard.queries] + [alert.value for alert in ALERTS]
    for name, value in variables.items():
        asked = [query.replace(name, value) for query in asked]
    return asked


def all_ready(names: set[str]) -> Callable[[ClusterReport], bool]:
    return lambda report: (
        {worker["name"] for worker in report["workers"]} == names
        and all(worker["state"] == "ready" and worker["load"] for worker in report["workers"])
    )


def all_decode(report: ClusterReport) -> bool:
    """Each of the decode workers has something to do."""
    return all(
        worker["load"] and worker["load"]["running"] for worker in report["workers"] if worker["role"] == "decode"
    )


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def incarnations(report: ClusterReport) -> dict[str, str]:
    return {worker["name"]: worker["incarnation"] for worker in report["workers"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_model(tmp_path_factory.mktemp("model"), FakeModel(seconds_per_step=0.002))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    controller, grpc, http, prometheus = free_ports(["127.0.0.1"] * 4)
    return Shell(tmp_path_factory.mktemp("state"), (controller, grpc, http, prometheus))


@pytest.fixture(scope="module")
def cluster(shell: Shell, model: Path) -> Iterator[Cluster]:
    """In the foreground of a terminal that the last of its tests ends with Ctrl-C."""
    foreground = up_in_foreground(shell, model, "--name", "default", *(["--with-prometheus"] if PROMETHEUS else []))
    said = read_until(foreground, "Ctrl-C ends it.")
    assert "curl http://127.0.0.1:" in said, said
    yield Cluster(shell, shell.store.read("default"), foreground)
    if shell.store.find("default") is not None:
        shell.run("down")


def test_status_lists_workers_with_role_node_load_and_kv_use(cluster: Cluster) -> None:
    cluster.until(all_ready({"prefill-0", "decode-0"}))
    done = cluster.shell.run("status", "--json")
    assert done.returncode == 0, done.stderr
    report: ClusterReport = json.loads(done.stdout)
    workers = {worker["name"]: worker for worker in report["workers"]}
    assert {name: worker["role"] for name, worker in workers.items()} == {"prefill-0": "prefill", "decode-0": "decode"}
    for worker in workers.values():
        assert worker["node"]
        assert worker["kv_usage"] == 0
        assert worker["load"] is not None
        assert worker["load"]["blocks"] == 128
        assert worker["restarts"] == 0
        assert worker["address"].startswith("127.0.0.1:")
    assert report["desired"] == {"prefill": 1, "decode": 1, "mixed": 0, "pool": 0}
    assert report["proxy"]["restarts"] == 0
    assert report["controller"]["error"] == ""


def test_a_prompt_is_prefilled_on_one_worker_and_decoded_on_the_other(cluster: Cluster) -> None:
    text, path = cluster.generate()
    assert path == "p2p"
    assert len(text) == 8


def test_the_generate_command_prints_the_answer(cluster: Cluster) -> None:
    done = cluster.shell.run("generate", "hello there", "--text", "--max-tokens", "8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == cluster.generate()[0]


@pytest.mark.parametrize("killed", ["decode-0", "prefill-0"])
def test_a_killed_worker_is_replaced_and_nothing_else_restarts(cluster: Cluster, killed: str) -> None:
    before = cluster.until(all_ready({"prefill-0", "decode-0"}))
    expected, _ = cluster.generate()
    restarts = {worker["name"]: worker["restarts"] for worker in before["workers"]}
    pid = next(worker["pid"] for worker in before["workers"] if worker["name"] == killed)
    kill(pid)
    after = cluster.until(
        lambda report: (
            all_ready({"prefill-0", "decode-0"})(report)
            and incarnations(report)[killed] != incarnations(before)[killed]
        )
    )
    other = ({"prefill-0", "decode-0"} - {killed}).pop()
    assert incarnations(after)[other] == incarnations(before)[other]
    assert after["controller"]["incarnation"] == before["controller"]["incarnation"]
    assert after["proxy"]["pid"] == before["proxy"]["pid"]
    workers = {worker["name"]: worker for worker in after["workers"]}
    assert workers[killed]["restarts"] == restarts[killed] + 1
    assert "its process died" in workers[killed]["last_error"]
    cluster.until(lambda _: cluster.is_ready)  # the proxy hears of the new one a moment later
    assert cluster.generate()[0] == expected


def test_scaling_up_gives_workers_that_serve_and_scaling_down_lets_them_finish_what_runs(cluster: Cluster) -> None:
    done = cluster.shell.run("scale", "prefill=2", "decode=2")
    assert done.returncode == 0, done.stderr
    assert "decode: 1 → 2" in done.stdout
    names = {"prefill-0", "prefill-1", "decode-0", "decode-1"}
    pids = [worker["pid"] for worker in cluster.until(all_ready(names))["workers"] if worker["name"].endswith("-1")]
    leaving = [reference(pid) for pid in pids if pid is not None]
    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(cluster.generate, num_tokens=LONG) for _ in range(4)]
        cluster.until(all_decode)
        assert cluster.shell.run("scale", "prefill=1", "decode=1").returncode == 0
        assert [future.result()[0] for future in running] == [expected_text(PROMPT, LONG)] * 4
    log = cluster.shell.run("logs", "proxy", "-n", "100").stdout
    ended = [line for line in log.splitlines() if " outcome=ok " in line]
    assert len(ended) >= 4
    assert all("attempts=1 " in line for line in ended[-4:])
    assert set(cluster.workers()) == {"prefill-0", "decode-0"}
    assert [process.wait(10) for process in leaving] == [True, True]
    assert cluster.generate()[1] == "p2p"


def test_a_killed_controller_adopts_the_living_and_drains_a_worker_whose_requests_go_on_elsewhere(
    cluster: Cluster,
) -> None:
    assert cluster.shell.run("scale", "decode=2", "pool=1").returncode == 0
    before = cluster.until(all_ready({"prefill-0", "decode-0", "decode-1", "pool-0"}))
    kill(before["controller"]["pid"])
    assert cluster.generate()[1] == "p2p"  # the proxy serves on, with the membership it has
    after = cluster.until(
        lambda report: (
            report["controller"]["error"] == ""
            and report["controller"]["incarnation"] != before["controller"]["incarnation"]
        )
    )
    assert incarnations(after) == incarnations(before)
    assert (after["desired"]["decode"], after["desired"]["pool"]) == (2, 1)
    assert after["proxy"]["pid"] == before["proxy"]["pid"]

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(cluster.generate, num_tokens=LONG) for _ in range(4)]
        cluster.until(all_decode)
        with grpc.insecure_channel(cluster.state.controller_address) as channel:
            control: Any = control_pb2_grpc.ControlStub(channel)
            request = control_pb2.DrainRequest(worker="decode-1", timeout_s=0.01)
            assert control.Drain(request, timeout=60).num_aborted > 0
        assert [future.result()[0] for future in running] == [expected_text(PROMPT, LONG)] * 4
    cluster.until(all_ready({"prefill-0", "decode-0", "decode-2", "pool-0"}))
    assert cluster.shell.run("scale", "decode=1").returncode == 0
    assert set(cluster.workers()) == {"prefill-0", "decode-0", "pool-0"}


@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on PATH")
def test_every_panel_and_every_alert_gets_data_from_a_real_prometheus(cluster: Cluster) -> None:
    assert "pool-0" in cluster.workers()  # from the test before: the pool has panels, too
    model = cluster.report()["cluster"]["model"]
    unanswered = queries()
    deadline = time.monotonic() + CHANGE_TIMEOUT_S
    for turn in count():
        prompt = f"{turn}: longer than a block, so that the prefix cache and the pool are asked"
        cluster.generate(prompt)
        body = {"model": model, "prompt": f"pooled {prompt}", "max_tokens": 4}
        asked = plain_http.post(f"{cluster.state.http_url}/v1/completions", json=body, headers=POOLED, timeout=60)
        assert asked.status_code == 200, asked.text
        unanswered = [query for query in unanswered if not cluster.query(query)]
        if not unanswered or time.monotonic() > deadline:
            break
    assert unanswered == []
    rules = plain_http.get(f"{cluster.prometheus}/api/v1/rules", timeout=10).json()["data"]["groups"][0]["rules"]
    assert {rule["name"] for rule in rules} == {alert.name for alert in ALERTS}


def test_a_killed_pool_node_is_replaced_and_scaled_away_like_a_worker(cluster: Cluster) -> None:
    killed = cluster.workers()["pool-0"]
    kill(killed["pid"])
    after = cluster.until(
        lambda report: (
            all_ready({"prefill-0", "decode-0", "pool-0"})(report)
            and incarnations(report)["pool-0"] != killed["incarnation"]
        )
    )
    pool = next(worker for worker in after["workers"] if worker["role"] == "pool")
    assert (pool["restarts"], pool["kv_usage"]) == (1, 0)
    assert cluster.shell.run("scale", "pool=0").returncode == 0
    assert set(cluster.workers()) == {"prefill-0", "decode-0"}


def test_the_last_worker_that_generates_cannot_be_scaled_away(cluster: Cluster) -> None:
    done = cluster.shell.run("scale", "decode=0")
    assert done.returncode == 1
    assert "no worker that generates would be left" in done.stderr


def test_the_context_is_what_the_workers_caches_hold(cluster: Cluster) -> None:
    (model,) = plain_http.get(f"{cluster.state.http_url}/v1/models", timeout=10).json()["data"]
    assert model["max_model_len"] == 128 * EngineConfig().block_size < FakeModel().max_model_len


def test_a_cluster_without_prefill_workers_still_answers(cluster: Cluster) -> None:
    expected, _ = cluster.generate()
    assert cluster.shell.run("scale", "prefill=0").returncode == 0
    assert cluster.generate() == (expected, "local")
    assert cluster.shell.run("scale", "prefill=1").returncode == 0
    cluster.until(lambda _: cluster.generate()[1] == "p2p")


def test_a_worker_changes_its_role_and_back_in_its_process_and_answers_stay_right(cluster: Cluster) -> None:
    before = next(w for w in cluster.until(all_ready({"prefill-0", "decode-0"}))["workers"] if w["role"] == "prefill")
    expected, incarnations_seen = expected_text(PROMPT, 8), {before["incarnation"]}
    for old, new in (("prefill", "decode"), ("decode", "prefill")):
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(cluster.generate, num_tokens=LONG)
            done = cluster.shell.run("role", "prefill-0", new)
            assert running.result()[0] == expected_text(PROMPT, LONG)
        assert done.returncode == 0, done.stderr
        assert f"prefill-0: {old} → {new}" in done.stdout
        now = cluster.workers()["prefill-0"]
        assert (now["role"], now["pid"], now["restarts"]) == (new, before["pid"], before["restarts"])
        assert now["incarnation"] not in incarnations_seen
        incarnations_seen.add(now["incarnation"])
        assert cluster.generate()[0] == expected
    cluster.until(lambda _: cluster.generate() == (expected, "p2p"))


def test_a_killed_proxy_is_started_again(cluster: Cluster) -> None:
    before = cluster.report()["proxy"]
    kill(before["pid"])
    after = cluster.until(lambda report: report["proxy"]["pid"] not in (None, before["pid"]))
    assert after["proxy"]["restarts"] == before["restarts"] + 1
    assert "SIGKILL" in after["proxy"]["last_error"]
    assert cluster.generate()[1] in ("p2p", "local")


def test_the_proxy_dies_with_its_runner_and_both_come_back(cluster: Cluster) -> None:
    proxy = reference(cluster.report()["proxy"]["pid"] or 0)
    kill(_parent(proxy.pid))
    assert proxy.wait(10)
    cluster.until(lambda report: report["proxy"]["pid"] not in (None, proxy.pid))
    assert cluster.generate()[1] in ("p2p", "local")


def test_logs_are_shown_for_each_process(cluster: Cluster) -> None:
    everything = cluster.shell.run("logs").stdout
    for name in ("controller", "proxy", "decode-0", "prefill-0", "ray"):
        assert f"==> {name} <==" in everything
    assert "serves as decode" in cluster.shell.run("logs", "decode-0", "-n", "1000").stdout
    unknown = cluster.shell.run("logs", "decode-9")
    assert unknown.returncode == 1
    assert "there is no log of 'decode-9'" in unknown.stderr


def test_a_second_cluster_of_the_same_name_is_refused(cluster: Cluster, model: Path) -> None:
    done = cluster.shell.run(*cluster.shell.up_arguments(model))
    assert done.returncode == 1
    assert "the cluster 'default' runs already" in done.stderr


def test_a_taken_port_is_named_with_the_cluster_that_has_it(cluster: Cluster, model: Path) -> None:
    done = cluster.shell.run(*cluster.shell.up_arguments(model), "--name", "other")
    assert done.returncode == 1
    assert f"port {cluster.state.controller_port} (cluster.controller_port) is taken by the cluster 'default'" in (
        done.stderr
    )
    assert cluster.shell.store.find("other") is None


def test_ray_answers_nobody_without_the_cluster_s_token(cluster: Cluster) -> None:
    token = (Path(cluster.state.folder) / "auth_token").read_text()
    with grpc.insecure_channel(cluster.state.ray_address) as channel:
        is_alive: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/ray.rpc.NodeInfoGcsService/CheckAlive"
        )
        for metadata in ((), (("authorization", "Bearer " + "0" * 64),)):
            with pytest.raises(grpc.RpcError) as refused:
                is_alive(b"", metadata=metadata, timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        is_alive(b"", metadata=(("authorization", f"Bearer {token}"),), timeout=10)


def test_ctrl_c_ends_a_foreground_cluster_whole(cluster: Cluster) -> None:
    processes = marked(CLUSTER_VARIABLE, cluster.state.mark)
    assert len(processes) > 8
    cluster.foreground.send_signal(signal.SIGINT)
    assert cluster.foreground.wait(60) == 0
    assert_nothing_left(cluster.shell.store, cluster.state, processes)


def test_down_without_a_cluster_says_so(shell: Shell) -> None:
    done = shell.run("down", "--name", "nobody")
    assert done.returncode == 0
    assert done.stdout.startswith("nothing to end: no cluster named 'nobody' runs here")


def test_a_failed_launch_prints_the_worker_s_last_lines_and_leaves_nothing(shell: Shell, tmp_path: Path) -> None:
    bad = write_fake_model(tmp_path)
    (bad / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}))
    before = _shared_memory()
    done = shell.run(*shell.up_arguments(bad), *ALONE, "--set", "cluster.restart.max_failed_starts=1")
    assert done.returncode == 1
    assert "could not start: UnsupportedModelError" in done.stderr
    assert "the last lines of its log:" in done.stderr
    assert "GPT2LMHeadModel" in done.stderr
    assert "Traceback" not in done.stderr
    kept = shell.store.kept_logs("default")
    assert f"all logs are kept in {kept}" in done.stderr
    assert "Traceback" in (kept / "decode-0.log").read_text()
    assert "starting workers: 0 of 1 ready …" in done.stdout.splitlines()
    assert shell.store.find("default") is None
    assert _shared_memory() <= before


@pytest.mark.long
def test_a_second_ctrl_c_does_not_wait_for_what_runs(shell: Shell, tmp_path: Path) -> None:
    slow = write_fake_model(tmp_path, FakeModel(seconds_per_step=0.05))
    process = up_in_foreground(shell, slow, "--name", "foreground")
    read_until(process, "Ctrl-C ends it.")
    state = shell.store.read("foreground")
    processes = marked(CLUSTER_VARIABLE, state.mark)
    request = text_request("hello", max_tokens=1500, temperature=0.0)
    answer = iter(Generation(state.grpc_address, request, 60))
    next(answer)
    process.send_signal(signal.SIGINT)
    read_until(process, "ending: up to 30 s for what runs; Ctrl-C again ends it now")
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert time.monotonic() - started < 25  # and not the 30 s that the request would have had
    assert_nothing_left(shell.store, state, processes)


@pytest.mark.long
def test_down_ends_what_a_killed_ray_head_left(shell: Shell, model: Path) -> None:
    done = shell.run(*shell.up_arguments(model), *ALONE, "--name", "headless", "--detach")
    assert done.returncode == 0, done.stderr
    state = shell.store.read("headless")
    assert state.head is not None
    processes = [*marked(CLUSTER_VARIABLE, state.mark), *in_sessions([state.head])]
    assert "ray::DashboardAgent" in {command_of(process.pid) for process in processes}
    os.kill(state.head.pid, signal.SIGKILL)
    done = shell.run("down", "--name", "headless")
    assert done.returncode == 0, done.stderr
    assert_nothing_left(shell.store, state, processes)


def up_in_foreground(shell: Shell, model: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PDSERVE, *shell.up_arguments(model), *arguments],
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """What it says up to the line with these words."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"{words!r} is not in what it said:\n{said}")


def assert_nothing_left(store: StateStore, state: ClusterState, processes: list[ProcessReference]) -> None:
    assert [process.pid for process in processes if process.is_alive] == []
    assert marked(CLUSTER_VARIABLE, state.mark) == []
    assert not Path(state.folder).exists()
    assert store.find(state.name) is None
    assert not [name for name in _shared_memory() if state.mark in name or "plasma" in name]


def _shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def _parent(pid: int) -> int:
    return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
