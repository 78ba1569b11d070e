"""`pdserve role` asks a controller over its gRPC face, and returns when the worker serves again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cluster.autoscale.autoscaler import Autoscaler
from cluster.control_service import ControlServer
from cluster.controller import Controller
from cluster.roles import RoleName
from deploy.cli import Role
from deploy.commands.role import change_role
from deploy.control_client import ControlClient
from deploy.errors import CommandError
from tests.unit.cluster.in_memory_launcher import InMemoryLauncher
from tests.unit.cluster.test_controller import all_ready, running, spec, until


async def ask(controller: Controller, worker: str, role: RoleName) -> str:
    """What the command does, in a thread as it blocks."""
    server = ControlServer(controller, Autoscaler(controller))
    port = await server.start("127.0.0.1:0")

    def change() -> str:
        with ControlClient(f"127.0.0.1:{port}") as client:
            return change_role(client, worker, role)

    try:
        return await asyncio.to_thread(change)
    finally:
        await server.stop()


async def test_it_returns_when_the_worker_serves_in_its_new_role(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path, spec(decode=2)) as controller:
        await until(controller, all_ready(3))
        launcher.newest("decode-1").drain_may_end.clear()
        asking = asyncio.create_task(ask(controller, "decode-1", "prefill"))
        await until(controller, lambda snapshot: not all_ready(3)(snapshot))
        assert not asking.done()
        launcher.newest("decode-1").drain_may_end.set()
        assert await asking == "decode"
        assert launcher.newest("decode-1").spec.role == "prefill"
        assert await ask(controller, "decode-1", "mixed") == "prefill"


@pytest.mark.parametrize(
    ("worker", "role", "words"),
    [
        ("decode-9", "mixed", "no worker is called 'decode-9'"),
        ("decode-0", "decode", "cannot become a decode worker"),
        ("decode-0", "prefill", "no worker that generates would be left"),
    ],
)
async def test_what_cannot_be_is_refused_with_the_reason(
    tmp_path: Path, worker: str, role: RoleName, words: str
) -> None:
    async with running(InMemoryLauncher(), tmp_path) as controller:
        await until(controller, all_ready(2))
        with pytest.raises(CommandError, match=words):
            await ask(controller, worker, role)


async def test_a_worker_that_does_not_start_in_its_new_role_is_told_with_its_error(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path, spec(decode=2)) as controller:
        await until(controller, all_ready(3))
        launcher.start_errors["decode-1"] = "no room"
        with pytest.raises(CommandError, match="decode-1 could not start as mixed: no room"):
            await ask(controller, "decode-1", "mixed")


def test_the_command_line_names_the_roles_that_a_worker_can_have() -> None:
    from cluster.roles import ROLE_NAMES

    assert [role.value for role in Role] == list(ROLE_NAMES)
