"""The controller's gRPC face over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from cluster.autoscale.autoscaler import Autoscaler
from cluster.control_service import ControlServer
from cluster.controller import Controller
from cluster.desired_file import DesiredFile
from rpc import control_pb2, control_pb2_grpc, worker_pb2
from rpc.worker_pb2 import PROTOCOL_VERSION
from tests.unit.cluster.in_memory_launcher import InMemoryLauncher
from tests.unit.cluster.test_controller import PROXY, all_ready, spec, until


class Served:
    """A controller, its launcher, and clients of its two services."""

    def __init__(self, controller: Controller, launcher: InMemoryLauncher, channel: grpc.aio.Channel) -> None:
        self.controller = controller
        self.launcher = launcher
        self.control = control_pb2_grpc.ControlStub(channel)
        self.membership = control_pb2_grpc.MembershipStub(channel)


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    launcher = InMemoryLauncher()
    controller = Controller(spec(), "/model", launcher, DesiredFile(tmp_path / "desired.json"), PROXY)
    await controller.adopt()
    server = ControlServer(controller, Autoscaler(controller))
    port = await server.start("127.0.0.1:0")
    task = asyncio.create_task(controller.run())
    await until(controller, all_ready(2))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Served(controller, launcher, channel)
    await controller.shut_down()
    await task
    await server.stop()


async def test_a_watcher_gets_the_whole_membership_then_each_change(served: Served) -> None:
    call = served.membership.Watch(control_pb2.WatchRequest(protocol_version=PROTOCOL_VERSION))
    first = await call.read()
    assert {member.worker for member in first.members} == {"prefill-0", "decode-0"}
    assert first.controller_incarnation == served.controller.incarnation
    decode = next(member for member in first.members if member.worker == "decode-0")
    assert (decode.role, decode.state, decode.address) == (
        worker_pb2.ROLE_DECODE,
        control_pb2.WORKER_READY,
        "decode-0:1",
    )
    served.launcher.newest("decode-0").die("killed")
    second = await call.read()
    assert second.version > first.version
    call.cancel()


async def test_a_watcher_of_another_protocol_version_is_refused_by_name(served: Served) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.membership.Watch(control_pb2.WatchRequest(protocol_version=99)).read()
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "protocol_version 99" in (refused.value.details() or "")


async def test_workers_are_listed_with_load_and_kv_use(served: Served) -> None:
    served.launcher.newest("decode-0").num_running = 3
    answer = await served.control.ListWorkers(control_pb2.ListWorkersRequest())
    assert dict(answer.desired) == {"prefill": 1, "decode": 1, "mixed": 0, "pool": 0}
    decode = next(info for info in answer.workers if info.member.worker == "decode-0")
    assert (decode.load.num_running, decode.pid, decode.kv_usage) == (3, 7, 0.25)


async def test_server_info_names_the_model_and_the_proxy(served: Served) -> None:
    info = await served.control.GetServerInfo(control_pb2.GetServerInfoRequest())
    assert info.model_name == "smollm2-135m-instruct"
    assert info.proxy_http_address == PROXY.http_address
    assert (info.proxy_pid, info.num_proxy_restarts, info.protocol_version) == (9, 0, PROTOCOL_VERSION)


async def test_scale_answers_with_the_previous_size(served: Served) -> None:
    request = control_pb2.ScaleRequest(role=worker_pb2.ROLE_DECODE, num_workers=2)
    assert (await served.control.Scale(request)).previous == 1
    await until(served.controller, all_ready(3))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (control_pb2.ScaleRequest(num_workers=1), "role must be prefill, decode, mixed or pool"),
        (control_pb2.ScaleRequest(role=worker_pb2.ROLE_DECODE, num_workers=1000), "num_workers 1000"),
    ],
)
async def test_a_wrong_scale_is_refused_and_changes_nothing(
    served: Served, request_: control_pb2.ScaleRequest, words: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.control.Scale(request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in (refused.value.details() or "")
    assert served.controller.fleet.desired["decode"] == 1


async def test_the_last_worker_that_generates_is_not_scaled_away(served: Served) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.control.Scale(control_pb2.ScaleRequest(role=worker_pb2.ROLE_DECODE, num_workers=0))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "no worker that generates" in (refused.value.details() or "")
    await served.control.Scale(control_pb2.ScaleRequest(role=worker_pb2.ROLE_MIXED, num_workers=1))
    await served.control.Scale(control_pb2.ScaleRequest(role=worker_pb2.ROLE_DECODE, num_workers=0))
    assert served.controller.fleet.desired == {"prefill": 1, "decode": 0, "mixed": 1, "pool": 0}


async def test_drain_of_an_unknown_worker_is_not_found(served: Served) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.control.Drain(control_pb2.DrainRequest(worker="decode-9"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_drain_answers_when_the_worker_is_out(served: Served) -> None:
    served.launcher.newest("decode-0").num_running = 1
    answer = await served.control.Drain(control_pb2.DrainRequest(worker="decode-0", timeout_s=1.0))
    assert answer.num_aborted == 1


async def test_shutdown_stops_every_process(served: Served) -> None:
    await served.control.Shutdown(control_pb2.ShutdownRequest())
    assert served.launcher.living == []
    assert not served.launcher.proxies[0].is_alive


async def test_a_taken_port_is_an_error_that_names_it(served: Served) -> None:
    autoscaler = Autoscaler(served.controller)
    first, second = ControlServer(served.controller, autoscaler), ControlServer(served.controller, autoscaler)
    port = await first.start("127.0.0.1:0")
    with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
        await second.start(f"127.0.0.1:{port}")
    await first.stop()
