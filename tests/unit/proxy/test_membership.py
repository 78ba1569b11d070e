"""The watch of the membership, and what the pool of workers makes of one that shrinks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bench.chaos.relay import Relay
from proxy.routing.prefix_index import PrefixIndex
from proxy.workers.membership import MembershipWatch
from proxy.workers.worker_link import LinkEvent, LinkLost, LinkTimes, WorkerLink
from proxy.workers.worker_pool import WorkerPool
from rpc import control_pb2, worker_pb2
from tests.unit.proxy.fake_worker import PATIENCE_S, FakeController, FakeWorker


@pytest.fixture
async def controller() -> AsyncIterator[FakeController]:
    controller = FakeController()
    await controller.start()
    yield controller
    await controller.stop()


@pytest.fixture
async def worker() -> AsyncIterator[FakeWorker]:
    worker = FakeWorker("decode-0", worker_pb2.ROLE_DECODE)
    await worker.start()
    yield worker
    await worker.stop()


async def test_a_watch_is_renewed_so_that_a_dead_connection_is_noticed(controller: FakeController) -> None:
    seen: asyncio.Queue[control_pb2.Members] = asyncio.Queue()
    watch = MembershipWatch(controller.address, "proxy", seen.put_nowait, renew_s=0.05)
    watching = asyncio.create_task(watch.run())
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(3):
            await seen.get()
    assert controller.num_watches >= 3
    watching.cancel()


async def test_a_controller_that_does_not_answer_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    accepted = asyncio.Semaphore(0)
    server = await asyncio.start_server(lambda reader, writer: accepted.release(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    watch = MembershipWatch(f"127.0.0.1:{port}", "proxy", lambda members: None, first_answer_s=0.05)
    watching = asyncio.create_task(watch.run())
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            await accepted.acquire()
    assert "is away (no answer within 0.05 s)" in caplog.text
    watching.cancel()
    server.close()


async def test_what_changed_while_the_controller_was_paused_is_heard_when_it_goes_on(
    controller: FakeController, worker: FakeWorker
) -> None:
    """Field report D15: it answers nothing for a while, and no connection breaks."""
    relay = Relay("127.0.0.1", int(controller.address.rpartition(":")[2]))
    await relay.start()
    seen: asyncio.Queue[control_pb2.Members] = asyncio.Queue()
    watching = asyncio.create_task(MembershipWatch(f"127.0.0.1:{relay.port}", "proxy", seen.put_nowait).run())
    async with asyncio.timeout(PATIENCE_S):
        assert not (await seen.get()).members
        relay.stall()
        controller.publish([worker])
        relay.flow()
        assert [member.worker for member in (await seen.get()).members] == [worker.name]
    watching.cancel()
    await relay.close()


async def test_a_worker_that_left_has_a_limited_time_to_end_what_it_runs(worker: FakeWorker) -> None:
    pool = WorkerPool("proxy", LinkTimes(), PrefixIndex(1), grace_s=0.05)
    changed = asyncio.Event()
    pool.subscribe(changed.set)
    pool.update([worker.member])
    async with asyncio.timeout(PATIENCE_S):
        while not pool.decode_links():
            changed.clear()
            await changed.wait()
    lost: asyncio.Future[LinkEvent] = asyncio.get_running_loop().create_future()
    (link,) = pool.decode_links()
    request = worker_pb2.TokenRequest(request_id="r")

    def listen(link: WorkerLink, event: LinkEvent) -> None:
        lost.set_result(event)

    link.start(worker_pb2.StartDecode(request=request, attempt=1), listen)
    await worker.next_start()
    pool.update([])
    assert not pool.decode_links()
    assert isinstance(await asyncio.wait_for(lost, PATIENCE_S), LinkLost)
    await pool.close()


async def test_a_worker_that_left_idle_and_one_that_returns(worker: FakeWorker) -> None:
    pool = WorkerPool("proxy", LinkTimes(), PrefixIndex(1), grace_s=60)
    pool.update([worker.member])
    pool.update([])  # nothing runs there: its link is closed at once
    pool.update([worker.member])
    async with asyncio.timeout(PATIENCE_S):
        changed = asyncio.Event()
        pool.subscribe(changed.set)
        while not pool.decode_links():
            changed.clear()
            await changed.wait()
    assert len(worker.hellos) >= 1
    await pool.close()
