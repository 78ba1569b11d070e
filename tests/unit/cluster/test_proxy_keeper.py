"""The proxy's runner: replaced when it ends, however it ends, and stopped whenever that is asked."""

from __future__ import annotations

import asyncio

from cluster.proxy_keeper import ProxyKeeper
from cluster.spec import ProxySpec, RestartSpec
from tests.unit.cluster.in_memory_launcher import InMemoryLauncher

DEADLINE_S = 5.0
SPEC = ProxySpec(command=("proxy",), grpc_address="127.0.0.1:1", http_address="127.0.0.1:2")


def keeper(launcher: InMemoryLauncher) -> ProxyKeeper:
    return ProxyKeeper(SPEC, RestartSpec(first_delay_s=0.0), launcher)


async def launched(launcher: InMemoryLauncher) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await launcher.proxy_launched.wait()
    launcher.proxy_launched.clear()


async def test_a_runner_that_breaks_but_lives_is_ended_before_another_takes_its_name() -> None:
    launcher = InMemoryLauncher()
    kept = keeper(launcher)
    task = asyncio.create_task(kept.run())
    await launched(launcher)
    launcher.proxies[0].fall_ill("OSError: no memory")
    await launched(launcher)
    assert [proxy.is_alive for proxy in launcher.proxies] == [False, True]
    await kept.stop()
    async with asyncio.timeout(DEADLINE_S):
        await task
    assert not launcher.proxies[1].is_alive


async def test_a_stop_during_the_launch_ends_what_was_launched() -> None:
    launcher = InMemoryLauncher()
    launcher.proxy_may_launch.clear()
    kept = keeper(launcher)
    task = asyncio.create_task(kept.run())
    await launched(launcher)
    await kept.stop()
    launcher.proxy_may_launch.set()
    async with asyncio.timeout(DEADLINE_S):
        await task
    assert not launcher.proxies[0].is_alive


async def test_an_adopted_runner_is_watched_as_one_of_its_own() -> None:
    launcher = InMemoryLauncher()
    adopted = await launcher.launch_proxy(SPEC)
    launcher.proxy_launched.clear()
    kept = keeper(launcher)
    kept.adopt(adopted)
    task = asyncio.create_task(kept.run())
    launcher.proxies[0].die("killed")
    await launched(launcher)
    await kept.stop()
    async with asyncio.timeout(DEADLINE_S):
        await task
    assert [proxy.is_alive for proxy in launcher.proxies] == [False, False]
