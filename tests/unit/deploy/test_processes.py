"""Processes known by pid and start time, and ports by who has them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.cluster_ports import wanted_ports
from deploy.cluster_state import CLUSTER_VARIABLE, StateStore
from deploy.config import DEFAULT_FILE, load
from deploy.port_check import HostError, PortTakenError, WantedPort, check_ports
from deploy.ports import GIVEN_OUT, LOWEST, free_ports, is_free, listener
from deploy.processes import ProcessReference, command_of, in_sessions, marked, reference

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PDSERVE_TEST_MARK": f"mark-{os.getpid()}"}
    process = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_process_is_stopped_and_known_to_be_gone(sleeper: subprocess.Popen[bytes]) -> None:
    process = reference(sleeper.pid)
    assert process.is_alive
    assert not process.wait(0.0)
    process.stop(timeout_s=5)
    assert not process.is_alive
    assert process.wait(0.0)
    process.stop(timeout_s=5)


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    child.stdout.readline()
    reference(child.pid).stop(timeout_s=0.1)
    assert child.wait(5) == -9
    child.stdout.close()


def test_a_pid_that_was_given_to_somebody_else_is_not_the_process(sleeper: subprocess.Popen[bytes]) -> None:
    stranger = ProcessReference(sleeper.pid, reference(sleeper.pid).started_at - 1)
    assert not stranger.is_alive
    stranger.stop(timeout_s=1)
    assert sleeper.poll() is None


def test_a_process_that_is_not_there_has_no_reference() -> None:
    with pytest.raises(ProcessLookupError):
        reference(2**22 + 1)
    assert command_of(2**22 + 1) == ""


def test_processes_are_found_by_their_mark(sleeper: subprocess.Popen[bytes]) -> None:
    reference(sleeper.pid)
    assert marked("PDSERVE_TEST_MARK", f"mark-{os.getpid()}") == [reference(sleeper.pid)]
    assert marked("PDSERVE_TEST_MARK", "another") == []


def test_processes_are_found_by_a_session_whose_leader_was_killed() -> None:
    code = "import subprocess as s; print(s.Popen(['sleep', '60'], stdout=s.DEVNULL).pid, flush=True); input()"
    leader = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert leader.stdout is not None
    assert leader.stdin is not None
    left, was = reference(int(leader.stdout.readline())), reference(leader.pid)
    leader.kill()
    leader.communicate()
    assert in_sessions([was]) == [left]
    left.stop(timeout_s=5)
    assert in_sessions([was]) == []


def test_a_session_of_a_process_that_got_the_same_pid_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    assert in_sessions([reference(sleeper.pid)]) == [reference(sleeper.pid)]
    assert in_sessions([ProcessReference(sleeper.pid, 0)]) == []


def test_a_taken_port_is_not_free_and_its_listener_is_found() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free("127.0.0.1", port)
        assert listener(port) == os.getpid()
    assert is_free("127.0.0.1", port)
    assert listener(port) is None


def test_free_ports_differ() -> None:
    assert len(set(free_ports(["127.0.0.1"] * 5))) == 5


def test_a_free_port_is_none_that_the_system_gives_out_meanwhile() -> None:
    lowest = int(GIVEN_OUT.read_text().split()[0])
    assert all(LOWEST <= port < lowest for port in free_ports(["127.0.0.1"] * 20)) or lowest <= LOWEST


def test_a_machine_that_gives_out_all_ports_has_free_ones_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = tmp_path / "range"
    everything.write_text("1024\t65535\n")
    monkeypatch.setattr("deploy.ports.GIVEN_OUT", everything)
    assert len(set(free_ports(["127.0.0.1"] * 5))) == 5


def test_an_address_of_another_machine_is_an_error_not_a_taken_port() -> None:
    with pytest.raises(OSError, match="annot assign"):
        is_free("203.0.113.1", 8000)


@pytest.mark.parametrize(
    ("setting", "host", "field"),
    [
        ("proxy.http_port", "nosuchhost.invalid", "proxy.host"),
        ("cluster.controller_port", "203.0.113.1", "cluster.host"),
    ],
)
def test_a_host_where_nothing_can_listen_is_named_with_its_setting(
    tmp_path: Path, setting: str, host: str, field: str
) -> None:
    with pytest.raises(HostError, match=rf"{field} is '{host}', where this machine cannot listen \(.*: set one of its"):
        check_ports([WantedPort(setting, host, 0)], StateStore(tmp_path))


def test_a_port_of_a_cluster_with_another_state_folder_is_told_as_such(tmp_path: Path) -> None:
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    environment = {**os.environ, CLUSTER_VARIABLE: "elsewhere", "XDG_STATE_HOME": "/elsewhere"}
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    port = int(child.stdout.readline())
    try:
        with pytest.raises(PortTakenError, match="end it with `XDG_STATE_HOME=/elsewhere pdserve down`"):
            check_ports([WantedPort("proxy.http_port", "127.0.0.1", port)], StateStore(tmp_path))
    finally:
        child.communicate(b"\n", timeout=5)


def test_a_taken_port_is_told_with_the_process_that_has_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            PortTakenError, match=rf"port {port} \(proxy.http_port\) is taken by process {os.getpid()} \("
        ):
            check_ports([WantedPort("proxy.http_port", "127.0.0.1", port)], StateStore(tmp_path))
    check_ports([WantedPort("proxy.http_port", "127.0.0.1", port)], StateStore(tmp_path))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("setting", ["cluster.controller_port", "proxy.http_port", "proxy.grpc_port"])
def test_each_port_of_the_settings_is_named_where_it_is_taken(tmp_path: Path, setting: str, host: str) -> None:
    """Field reports D41 and D42: before anything is started."""
    config = load(DEFAULT_FILE, {"cluster.host": host, "proxy.host": host})
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        port = taken.getsockname()[1]
        wanted = wanted_ports(config, with_prometheus=False)
        ports = [replace(want, port=port if want.setting == setting else 0) for want in wanted]
        with pytest.raises(PortTakenError, match=rf"port {port} \({setting}\) is taken by "):
            check_ports(ports, StateStore(tmp_path))
