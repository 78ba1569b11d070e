"""A command kept running by a real parent, and what becomes of it when the parent dies."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.child_process import ChildProcess
from cluster.die_with_parent import wrapped
from cluster.spec import RestartSpec
from deploy.processes import reference

pytestmark = pytest.mark.integration

RESTART = RestartSpec(first_delay_s=0.01, longest_delay_s=0.02)
DEADLINE_S = 20


async def test_a_child_that_exits_is_started_again_and_its_last_error_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "starts"
    count = f"echo x >> {file}; [ $(wc -l < {file}) -ge 3 ] && exec sleep 60; exit 7"
    child = ChildProcess("proxy", ("sh", "-c", count), RESTART)
    task = asyncio.create_task(child.run())
    async with asyncio.timeout(DEADLINE_S):
        while child.num_starts < 3 or child.pid is None:  # noqa: ASYNC110  another process is waited for
            await asyncio.sleep(0.01)
    assert child.last_error == "proxy exited with code 7"
    await child.stop(timeout_s=5)
    assert child.pid is None
    async with asyncio.timeout(DEADLINE_S):
        await task
    assert child.num_starts == 3


async def test_a_child_that_ignores_sigterm_is_killed_with_its_group(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    stubborn = f"trap '' TERM; sleep 60 & echo $! > {file}.new; mv {file}.new {file}; wait; wait"
    child = ChildProcess("proxy", ("sh", "-c", stubborn), RESTART)
    task = asyncio.create_task(child.run())
    async with asyncio.timeout(DEADLINE_S):
        while not file.exists():  # noqa: ASYNC110  another process is waited for
            await asyncio.sleep(0.01)
    grandchild = reference(int(file.read_text()))
    await child.stop(timeout_s=0.2)
    assert grandchild.wait(5)
    async with asyncio.timeout(DEADLINE_S):
        await task


def test_a_child_dies_with_a_parent_that_is_killed() -> None:
    code = (
        "import subprocess, sys, time\nfrom cluster.die_with_parent import wrapped\n"
        "child = subprocess.Popen(wrapped(('sh', '-c', 'echo ready; exec sleep 60')), stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\nprint(child.pid, flush=True)\ntime.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = reference(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert child.wait(5)


def test_a_child_whose_parent_is_gone_already_does_not_start() -> None:
    command = wrapped(("sh", "-c", "echo started"))
    command[3] = "1"  # as if this process had ended, and init had the child
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")


async def test_a_stopped_child_gets_sigterm_first(tmp_path: Path) -> None:
    file = tmp_path / "said"
    polite = f"trap 'echo bye > {file}; exit 0' TERM; echo up > {file}; while :; do sleep 0.05; done"
    child = ChildProcess("proxy", ("sh", "-c", polite), RESTART)
    task = asyncio.create_task(child.run())
    async with asyncio.timeout(DEADLINE_S):
        while not file.exists():  # noqa: ASYNC110  another process is waited for
            await asyncio.sleep(0.01)
    await child.stop(timeout_s=5)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert file.read_text() == "bye\n"
    assert signal.SIGTERM.name not in child.last_error
