"""`pdserve doctor`: each thing that can be wrong with a machine is found, with its fix."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from deploy.cluster_state import StateStore
from deploy.config import DEFAULT_FILE, DeployConfig, load
from deploy.doctor import figures, machine, settings, software
from deploy.doctor.finding import Finding, Level
from deploy.doctor.software import Tried

GIB = 1 << 30
FINE = Tried({"blocks": 16})
NO = Tried(None, "status 1: no such device")


def config(**changes: object) -> DeployConfig:
    return load(DEFAULT_FILE, {name.replace("__", "."): value for name, value in changes.items()})


@pytest.mark.parametrize(
    ("finding", "level", "fix"),
    [
        (machine.processor("Linux", "x86_64", 2, 2), Level.OK, ""),
        (machine.processor("Linux", "x86_64", 2, 3), Level.WARNING, "cluster.engine.threads"),
        (machine.processor("Darwin", "arm64", 8, 2), Level.ERROR, "Linux on x86-64"),
        (machine.memory(8 * GIB, 4 * GIB), Level.OK, ""),
        (machine.memory(4 * GIB, 8 * GIB), Level.ERROR, "cluster.engine.num_blocks"),
        (machine.shared_memory(2 * GIB), Level.OK, ""),
        (machine.shared_memory(64 << 20), Level.WARNING, "--shm-size"),
        (machine.disk("/tmp", 100 * GIB, 50 * GIB), Level.OK, ""),
        (machine.disk("/tmp", 100 * GIB, 3 * GIB), Level.WARNING, "TMPDIR"),
        (machine.disk("/tmp", 1000 * GIB, 40 * GIB), Level.WARNING, "TMPDIR"),
        (machine.open_files(20000), Level.OK, ""),
        (machine.open_files(1024), Level.WARNING, "ulimit -n"),
        (machine.locked_memory(8 << 20, has_rdma=False), Level.OK, ""),
        (machine.locked_memory(None, has_rdma=True), Level.OK, ""),
        (machine.locked_memory(8 << 20, has_rdma=True), Level.WARNING, "ulimit -l unlimited"),
        (machine.clock(True, 4), Level.OK, ""),
        (machine.clock(None, 4), Level.OK, ""),
        (machine.clock(False, 1), Level.OK, ""),
        (machine.clock(False, 4), Level.WARNING, "chrony"),
        (machine.compiler("/usr/bin/cc"), Level.OK, ""),
        (machine.compiler(None), Level.WARNING, "install gcc"),
        (software.python((3, 11)), Level.OK, ""),
        (software.python((3, 13)), Level.ERROR, "Python 3.11"),
        (software.packages({"torch": "2.13.0"}, {"torch": "2.13.0+cpu"}), Level.OK, ""),
        (software.packages({"torch": "2.13.0"}, {"torch": "2.9.0"}), Level.ERROR, "install.sh"),
        (software.packages({"ray": "2.60.0"}, {"ray": None}), Level.ERROR, "install.sh"),
        (software.torch(Tried({"version": "2", "gpus": []}), False, False), Level.OK, ""),
        (software.torch(Tried({"version": "2", "gpus": []}), True, False), Level.ERROR, "cluster.engine.device=cpu"),
        (software.torch(Tried({"version": "2", "gpus": []}), False, True), Level.WARNING, "CUDA build"),
        (software.torch(Tried({"version": "2", "gpus": ["H100"]}), True, True), Level.OK, ""),
        (software.torch(NO, False, False), Level.ERROR, "install.sh"),
        (software.ray(Tried({"version": "2"}), None), Level.OK, ""),
        (software.ray(Tried({"version": "2"}), "auto"), Level.WARNING, "unset RAY_ADDRESS"),
        (software.ray(NO, None), Level.ERROR, "install.sh"),
    ],
)
def test_each_figure_is_judged_and_what_is_wrong_has_a_fix(finding: Finding, level: Level, fix: str) -> None:
    assert finding.level is level
    assert fix in finding.fix
    assert bool(finding.fix) is (level is not Level.OK)


@pytest.mark.parametrize(
    ("tcp", "shared", "levels"),
    [
        (FINE, FINE, [Level.OK, Level.OK]),
        (FINE, NO, [Level.OK, Level.WARNING]),
        (NO, FINE, [Level.ERROR, Level.OK]),
        (NO, NO, [Level.ERROR, Level.ERROR]),
    ],
)
def test_nixl_needs_tcp_and_is_quicker_with_shared_memory(tcp: Tried, shared: Tried, levels: list[Level]) -> None:
    assert [finding.level for finding in software.nixl(tcp, shared)] == levels


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("import no_such_library", "status 1: ModuleNotFoundError: No module named 'no_such_library'"),
        ("import os; os.abort()", "status -6: it said nothing"),
        ("print('hello')", "an answer that cannot be read: 'hello\\n'"),
        ("import threading; threading.Event().wait()", "no answer after 1 s"),
    ],
)
def test_a_library_that_fails_ends_its_own_process_only(code: str, failure: str) -> None:
    timeout_s = 1.0 if "Event" in code else 60.0
    assert software.try_command([sys.executable, "-S", "-c", code], timeout_s) == Tried(None, failure)


def test_a_taken_port_is_named_with_its_setting_and_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = settings.ports(config(proxy__http_port=port), StateStore(tmp_path))
    (wrong,) = [finding for finding in found if finding.what == f"port {port}"]
    assert wrong.level is Level.ERROR
    assert "proxy.http_port" in wrong.seen
    assert wrong.fix == "--set proxy.http_port=0 takes a free one"


def test_certificates_that_are_not_there_are_found(tmp_path: Path) -> None:
    found = settings.security(config(cluster__tls=str(tmp_path)))
    assert found.level is Level.ERROR
    assert "cluster.tls" in found.seen


def test_a_cluster_open_to_everybody_is_warned_of() -> None:
    assert settings.security(config()).level is Level.OK
    assert settings.security(config(proxy__insecure=True)).level is Level.WARNING


def test_the_figures_of_this_machine_can_be_read() -> None:
    assert figures.available_memory() > 0
    assert figures.is_clock_synchronised() in (True, False, None)
    pins = figures.pins("pdserve")
    assert figures.installed(["ray", "no-such-package"])["no-such-package"] is None
    assert pins["ray"] == figures.installed(["ray"])["ray"]
    assert figures.num_threads(config(cluster__pools__decode__replicas=3).cluster) == 4
    groups = [{"name": "wide", "most": 2, "engine": {"threads": 8}}, {"name": "narrow"}]
    grouped = config(cluster__pools__decode__replicas=3, cluster__pools__decode__groups=groups)
    assert figures.num_threads(grouped.cluster) == 1 + 2 * 8 + 1
