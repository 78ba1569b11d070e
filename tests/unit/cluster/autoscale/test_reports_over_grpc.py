"""How proxies learn that their traffic is asked for, and how their reports arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from cluster.autoscale.autoscaler import Autoscaler
from cluster.control_service import ControlServer
from cluster.spec import ClusterSpec
from rpc import control_pb2, control_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION
from tests.unit.cluster.in_memory_launcher import InMemoryLauncher
from tests.unit.cluster.test_controller import all_ready, running, until


@asynccontextmanager
async def served(folder: Path, *, enabled: bool) -> AsyncIterator[tuple[Autoscaler, control_pb2_grpc.MembershipStub]]:
    pools = {"prefill": {"replicas": 1}, "decode": {"replicas": 1}}
    spec = ClusterSpec.model_validate({"pools": pools, "autoscale": {"enabled": enabled, "every_s": 2.5}})
    async with running(InMemoryLauncher(), folder, spec) as controller:
        await until(controller, all_ready(2))
        autoscaler = Autoscaler(controller)
        server = ControlServer(controller, autoscaler)
        port = await server.start("127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield autoscaler, control_pb2_grpc.MembershipStub(channel)
        await server.stop()


@pytest.mark.parametrize(("enabled", "every_s"), [(True, 2.5), (False, 0.0)])
async def test_a_proxy_is_asked_for_reports_only_by_an_autoscaler_that_is_on(
    tmp_path: Path, enabled: bool, every_s: float
) -> None:
    async with served(tmp_path, enabled=enabled) as (_, membership):
        call = membership.Watch(control_pb2.WatchRequest(protocol_version=PROTOCOL_VERSION))
        assert (await call.read()).traffic_every_s == every_s
        call.cancel()


async def test_a_report_reaches_the_next_look(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path, enabled=True) as (autoscaler, membership):
        told = control_pb2.ClassTraffic(priority="interactive", num_arrived=3)
        await membership.ReportTraffic(control_pb2.TrafficReport(proxy_incarnation="p", span_s=30, classes=[told]))
        await autoscaler.look()
        assert "no proxy has reported" not in caplog.text


async def test_an_autoscaler_that_is_off_does_nothing_at_all(tmp_path: Path) -> None:
    async with served(tmp_path, enabled=False) as (autoscaler, _), asyncio.timeout(20):
        await autoscaler.run()
