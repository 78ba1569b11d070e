"""The command line: quick help, sizes, reports, and errors for people."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from cluster.control_service import worker_message
from cluster.fleet_worker import WorkerState
from cluster.launcher import WorkerReport
from cluster.membership import Addresses, Member
from cluster.worker_status import WorkerStatus
from deploy.cli import app
from deploy.cluster_access import ClusterAccess
from deploy.cluster_folder import keep_logs, make_folder
from deploy.cluster_report import worker_part
from deploy.commands.scale import growth_first, parse_sizes
from deploy.commands.status import workers_table
from deploy.commands.up import UpOptions
from deploy.errors import CommandError, show_errors
from deploy.launched_proxy import reachable
from deploy.prometheus import SETTINGS_FILE, settings_for
from deploy.ray_process import CONSOLE_ADVICE, last_lines
from rpc import worker_pb2
from tests.unit.deploy.test_cluster_state import state


def options(**changes: object) -> UpOptions:
    values: dict[str, object] = {
        "name": "default", "config": None, "replicas": {}, "model": None, "detach": False,
        "with_prometheus": False, "insecure": False, "ray": None, "settings": [],
    }  # fmt: skip
    return UpOptions(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "command",
    ["up", "down", "status", "logs", "generate", "scale", "role", "doctor", "plan", "top", "trace", "timeline"],
)
def test_every_command_has_a_help_text(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 5


def test_help_imports_neither_torch_nor_ray_nor_grpc() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom deploy.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "print(sorted({'torch', 'ray', 'grpc', 'transformers', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.strip() == "[]"


def test_up_s_options_become_settings() -> None:
    up = options(
        replicas={"prefill": 2, "decode": None, "mixed": 0},
        model="/m",
        insecure=True,
        settings=["proxy.http_port=1234"],
    )
    assert up.overrides == {
        "proxy.http_port": 1234,
        "cluster.pools.prefill.replicas": 2,
        "cluster.pools.mixed.replicas": 0,
        "cluster.model": "/m",
        "proxy.insecure": True,
    }
    assert up.given_by == {
        "cluster.pools.prefill.replicas": "--prefill",
        "cluster.pools.mixed.replicas": "--mixed",
        "cluster.model": "--model",
        "proxy.insecure": "--insecure",
    }
    assert options().overrides == {}


def test_the_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output.split()) == (0, ["pdserve", version("pdserve")])


def test_ray_s_advice_is_left_out_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "ray.log"
    log.write_text(
        "2026-01-01 00:00:00,000\tINFO scripts.py:1142 -- To terminate the Ray runtime, run\n"
        "2026-01-01 00:00:00,000\tINFO scripts.py:1143 --   ray stop\n"
        "2026-01-01 00:00:00,000\tERR scripts.py:1300 -- Some Ray subprocesses exited unexpectedly:\n"
        "a line of another kind\n"
    )
    shown = last_lines(log, 50, leave_out=CONSOLE_ADVICE).splitlines()
    assert [line.partition(" -- ")[2] or line for line in shown] == [
        "Some Ray subprocesses exited unexpectedly:",
        "a line of another kind",
    ]


def test_sizes_are_read() -> None:
    assert parse_sizes(["prefill=1", "decode=20"]) == {"prefill": 1, "decode": 20}


@pytest.mark.parametrize("text", ["decode", "decode=", "decode=-1", "decode=two", "router=1", "=1"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="prefill=N"):
        parse_sizes([text])


def test_a_pool_is_emptied_after_another_was_filled() -> None:
    assert growth_first({"decode": 0, "prefill": 2, "mixed": 1}) == [("prefill", 2), ("mixed", 1), ("decode", 0)]


def test_a_worker_is_reported_with_its_load() -> None:
    addresses = Addresses("127.0.0.1:1", "127.0.0.1:2", "node-a", ("nixl",))
    member = Member("decode-0", "i1", "decode", WorkerState.READY, addresses)
    load = worker_pb2.Load(num_running=2, num_waiting=1, num_blocks=10, num_free_blocks=4, admitting=True)
    part = worker_part(worker_message(WorkerStatus(member, 3, "killed", WorkerReport(77, 1.25, load))))
    assert (part["name"], part["role"], part["state"], part["node"]) == ("decode-0", "decode", "ready", "node-a")
    assert (part["kv_usage"], part["restarts"], part["pid"], part["last_error"]) == (0.6, 3, 77, "killed")
    assert part["load"] is not None
    assert (part["load"]["running"], part["load"]["waiting"]) == (2, 1)


def test_the_group_of_a_worker_is_shown_where_pools_have_groups() -> None:
    def shown(*members: Member) -> list[list[str]]:
        parts = [worker_part(worker_message(WorkerStatus(member, 0, "", None))) for member in members]
        console = Console(width=160, file=StringIO())
        with console.capture() as said:
            console.print(workers_table(parts))
        return [line.split() for line in said.get().splitlines()]

    alike = Member("decode-0", "i1", "decode", WorkerState.FAILED, None)
    assert shown(alike)[0][:3] == ["WORKER", "ROLE", "STATE"]
    grouped = Member("decode-1", "i2", "decode", WorkerState.FAILED, None, group="big")
    assert [line[:4] for line in shown(alike, grouped)] == [
        ["WORKER", "ROLE", "GROUP", "STATE"],
        ["decode-0", "decode", "failed", "0"],
        ["decode-1", "decode", "big", "failed"],
    ]


def test_a_worker_that_does_not_answer_has_no_load() -> None:
    member = Member("decode-0", "i1", "decode", WorkerState.FAILED, None)
    part = worker_part(worker_message(WorkerStatus(member, 3, "ValueError: no", None)))
    assert (part["state"], part["load"], part["kv_usage"], part["pid"]) == ("failed", None, None, None)


def test_an_error_for_people_is_one_message_and_another_keeps_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended, show_errors():
        raise CommandError("do that instead")
    assert ended.value.code == "pdserve: do that instead"
    with pytest.raises(ZeroDivisionError), show_errors():
        raise ZeroDivisionError


def test_prometheus_scrapes_the_cluster_s_own_proxy() -> None:
    settings = yaml.safe_load(settings_for(state(), ClusterAccess(None, None, None, ())))
    assert settings["scrape_configs"][0]["http_sd_configs"][0]["url"] == "http://[::1]:8000/prometheus/targets"
    shipped = yaml.safe_load(SETTINGS_FILE.read_text())
    assert shipped["scrape_configs"][0]["http_sd_configs"][0]["url"] == "http://127.0.0.1:8000/prometheus/targets"


@pytest.mark.parametrize(("host", "address"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.1", "10.0.0.1")])
def test_a_wildcard_is_reached_over_loopback(host: str, address: str) -> None:
    assert reachable(host) == address


def test_the_folder_s_path_is_short_enough_for_ray_s_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = make_folder()
    assert len(str(folder)) <= 40
    assert list(deep.iterdir()) == []
    folder.rmdir()


@pytest.mark.parametrize(("python", "says"), [("/bin/ls", "ls "), ("no-such-python", "there is no such program")])
def test_a_chosen_python_that_does_not_fit_is_refused_in_one_line(python: str, says: str) -> None:
    script = SETTINGS_FILE.with_name("install.sh")
    done = subprocess.run(
        [script], env={**os.environ, "PYTHON": python}, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"PYTHON={python} is no Python 3.11 ({says}")
    assert len(done.stderr.splitlines()) == 1


def test_the_logs_of_a_failed_launch_replace_those_of_the_one_before(tmp_path: Path) -> None:
    folder, kept = tmp_path / "cluster", tmp_path / "state" / "kept"
    assert keep_logs(folder, kept) is None
    for name in ("first", "second"):
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        (folder / "logs" / f"{name}.log").write_text(name)
        (folder / "ray" / "session_1_2" / "logs").mkdir(parents=True, exist_ok=True)
        (folder / "ray" / "session_1_2" / "logs" / "gcs.out").write_text(name)
        assert keep_logs(folder, kept) == kept
        (folder / "logs" / f"{name}.log").unlink()
    assert sorted(str(file.relative_to(kept)) for file in kept.rglob("*.*")) == ["ray/gcs.out", "second.log"]
