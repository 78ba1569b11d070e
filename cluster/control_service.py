"""The controller's gRPC face: membership for proxies, control for operators.

It only translates; every error becomes a status here. Who may call it is decided by where it listens.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from cluster.autoscale.autoscaler import Autoscaler
from cluster.controller import Controller, NothingGeneratesError
from cluster.fleet import NoRoomError, RoleChangeError, UnknownWorkerError
from cluster.fleet_worker import WorkerState
from cluster.membership import Member, Snapshot
from cluster.pool_load import pool_load
from cluster.roles import ROLE_NAMES, ROLES
from cluster.worker_status import WorkerStatus
from rpc import control_pb2, control_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION
from security.connection import HANDSHAKE_OPTION, listen

MOST_WORKERS = 64  # of one pool
LONGEST_DRAIN_S = 86_400.0
STOP_GRACE_S = 1.0
STATES = {
    WorkerState.STARTING: control_pb2.WORKER_STARTING,
    WorkerState.READY: control_pb2.WORKER_READY,
    WorkerState.DRAINING: control_pb2.WORKER_DRAINING,
    WorkerState.WAITING: control_pb2.WORKER_STARTING,
    WorkerState.FAILED: control_pb2.WORKER_FAILED,
}
SERVER_OPTIONS = [
    ("grpc.so_reuseport", 0),  # a taken port is an error, not a second listener
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    HANDSHAKE_OPTION,
]


class MembershipService(control_pb2_grpc.MembershipServicer):
    def __init__(self, controller: Controller, autoscaler: Autoscaler, metrics_address: str) -> None:
        self._controller = controller
        self._autoscaler = autoscaler
        self._metrics_address = metrics_address

    async def Watch(  # noqa: N802  gRPC's name
        self, request: control_pb2.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[control_pb2.Members]:
        if request.protocol_version != PROTOCOL_VERSION:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"protocol_version {request.protocol_version} of the proxy is not this controller's "
                f"{PROTOCOL_VERSION}: upgrade the older of the two",
            )
        async for snapshot in self._controller.membership.subscribe():
            members = members_message(snapshot, self._controller.incarnation)
            members.traffic_every_s = self._autoscaler.traffic_every_s
            members.metrics_address = self._metrics_address
            yield members

    async def ReportTraffic(  # noqa: N802
        self, request: control_pb2.TrafficReport, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.TrafficReportTaken:
        self._autoscaler.reported(request)
        return control_pb2.TrafficReportTaken()


class ControlService(control_pb2_grpc.ControlServicer):
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def GetServerInfo(  # noqa: N802
        self, _request: control_pb2.GetServerInfoRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.ServerInfo:
        controller = self._controller
        info = control_pb2.ServerInfo(
            protocol_version=PROTOCOL_VERSION,
            version=importlib.metadata.version("pdserve"),
            model_name=controller.spec.model_name,
            controller_incarnation=controller.incarnation,
            uptime_s=monotonic() - controller.started_at,
            pid=os.getpid(),
        )
        if controller.proxy.spec is not None:
            info.proxy_http_address = controller.proxy.spec.http_address
            info.proxy_grpc_address = controller.proxy.spec.grpc_address
        proxy = await controller.proxy.describe()
        if proxy is not None:
            info.proxy_pid = proxy.pid or 0
            info.num_proxy_restarts = proxy.num_restarts
            info.proxy_last_error = proxy.last_error
        return info

    async def GetLoad(  # noqa: N802
        self, _request: control_pb2.GetLoadRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.GetLoadResponse:
        statuses, desired = await self._controller.list_workers(), self._controller.fleet.desired
        return control_pb2.GetLoadResponse(pools=[pool_load(role, desired[role], statuses) for role in ROLE_NAMES])

    async def ListWorkers(  # noqa: N802
        self, _request: control_pb2.ListWorkersRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.ListWorkersResponse:
        statuses = await self._controller.list_workers()
        capacities = {str(role): limits.capacity for role, limits in self._controller.fleet.limits.items()}
        return control_pb2.ListWorkersResponse(
            workers=[worker_message(status) for status in statuses],
            desired={str(role): count for role, count in self._controller.fleet.desired.items()},
            most={role: most for role, most in capacities.items() if most is not None},
        )

    async def Scale(  # noqa: N802
        self, request: control_pb2.ScaleRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.ScaleResponse:
        role = next((name for name, number in ROLES.items() if number == request.role), None)
        if role is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "role must be prefill, decode, mixed or pool")
        if request.num_workers > MOST_WORKERS:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"num_workers {request.num_workers} is above the limit, {MOST_WORKERS}",
            )
        try:
            return control_pb2.ScaleResponse(previous=self._controller.scale(role, request.num_workers))
        except (NothingGeneratesError, NoRoomError) as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    async def Drain(  # noqa: N802
        self, request: control_pb2.DrainRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.DrainResponse:
        timeout_s = await self._drain_timeout_s(request.timeout_s, context)
        try:
            return control_pb2.DrainResponse(num_aborted=await self._controller.drain(request.worker, timeout_s))
        except UnknownWorkerError:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no running worker is called {request.worker!r}")

    async def SetRole(  # noqa: N802
        self, request: control_pb2.SetRoleRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.SetRoleResponse:
        role = next((name for name in ROLE_NAMES if ROLES[name] == request.role), None)
        if role is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "role must be prefill, decode or mixed")
        timeout_s = await self._drain_timeout_s(request.timeout_s, context)
        try:
            self._controller.set_role(request.worker, role, request.expected_epoch, timeout_s)
        except UnknownWorkerError:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no running worker is called {request.worker!r}")
        except (RoleChangeError, NothingGeneratesError) as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return control_pb2.SetRoleResponse(role_epoch=request.expected_epoch + 1)

    async def Shutdown(  # noqa: N802
        self, _request: control_pb2.ShutdownRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.ShutdownResponse:
        await self._controller.shut_down()
        return control_pb2.ShutdownResponse()

    async def _drain_timeout_s(self, asked_s: float, context: grpc.aio.ServicerContext[Any, Any]) -> float:
        if not 0 <= asked_s <= LONGEST_DRAIN_S:  # nor not a number
            text = f"timeout_s {asked_s:g} is not from 0 to {LONGEST_DRAIN_S:g}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        return asked_s or self._controller.spec.drain_timeout_s


class ControlServer:
    """Maintains the listening server, health included."""

    def __init__(self, controller: Controller, autoscaler: Autoscaler, metrics_address: str = "") -> None:
        """`metrics_address`: where the controller's own metrics are, for proxies to tell."""
        membership = MembershipService(controller, autoscaler, metrics_address)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._health = health.aio.HealthServicer()
        control_pb2_grpc.add_MembershipServicer_to_server(membership, self._server)
        control_pb2_grpc.add_ControlServicer_to_server(ControlService(controller), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, address: str, tls: grpc.ServerCredentials | None = None) -> int:
        """The port it listens on. Raises OSError."""
        port = listen(self._server, address, tls)
        await self._server.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        return port

    async def stop(self) -> None:
        await self._server.stop(grace=STOP_GRACE_S)


def members_message(snapshot: Snapshot, controller_incarnation: str) -> control_pb2.Members:
    present = [member for member in snapshot.members if member.state is not WorkerState.FAILED]
    return control_pb2.Members(
        version=snapshot.version,
        controller_incarnation=controller_incarnation,
        members=[member_message(member) for member in present if member.role != "pool"],
        pool_nodes=[member_message(member) for member in present if member.role == "pool"],
    )


def member_message(member: Member) -> control_pb2.Member:
    message = control_pb2.Member(
        worker=member.worker,
        incarnation=member.incarnation,
        role=ROLES[member.role],
        role_epoch=member.role_epoch,
        group=member.group,
        state=STATES[member.state],
    )
    if member.addresses is not None:
        message.address = member.addresses.grpc
        message.metrics_address = member.addresses.metrics
        message.node = member.addresses.node
        message.transports.extend(member.addresses.transports)
    return message


def worker_message(status: WorkerStatus) -> control_pb2.WorkerInfo:
    message = control_pb2.WorkerInfo(
        member=member_message(status.member), num_restarts=status.num_restarts, last_error=status.last_error
    )
    report = status.report
    if report is not None:
        load = report.load
        message.load.CopyFrom(load)
        message.pid = report.pid
        message.uptime_s = report.uptime_s
        message.kv_usage = 1 - load.num_free_blocks / load.num_blocks if load.num_blocks else 0.0
    return message
