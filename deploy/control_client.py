"""The controller and the proxy as the commands see them: short gRPC calls with deadlines, and errors for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from deploy.channel import open_channel
from deploy.errors import CommandError
from rpc import control_pb2, control_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION
from security.channel_tls import ChannelTls

CALL_TIMEOUT_S = 10.0
DRAIN_TIMEOUT_S = 300.0
REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND)


class ControllerUnreachableError(CommandError):
    """It gave no answer; the message says where and why."""


class ControllerRefusedError(CommandError):
    """It answered, with a reason why not."""


class ControlClient:
    """One connection to a controller. Use as a context."""

    def __init__(self, address: str, tls: ChannelTls | None = None) -> None:
        self.address = address
        self._channel = open_channel(address, tls)
        self._control = control_pb2_grpc.ControlStub(self._channel)
        self._membership = control_pb2_grpc.MembershipStub(self._channel)

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self._channel.close()

    def server_info(self) -> control_pb2.ServerInfo:
        with self._errors():
            info: control_pb2.ServerInfo = self._control.GetServerInfo(
                control_pb2.GetServerInfoRequest(), timeout=CALL_TIMEOUT_S
            )
            return info

    def list_workers(self) -> control_pb2.ListWorkersResponse:
        with self._errors():
            answer: control_pb2.ListWorkersResponse = self._control.ListWorkers(
                control_pb2.ListWorkersRequest(), timeout=CALL_TIMEOUT_S
            )
            return answer

    def scale(self, role: int, num_workers: int) -> int:
        """The size before. Raises ControllerRefusedError."""
        request = control_pb2.ScaleRequest(role=role, num_workers=num_workers)  # type: ignore[arg-type]
        with self._errors():
            return int(self._control.Scale(request, timeout=CALL_TIMEOUT_S).previous)

    def set_role(self, worker: str, role: int, expected_epoch: int) -> int:
        """The role epoch that the worker will have. Raises ControllerRefusedError."""
        request = control_pb2.SetRoleRequest(worker=worker, role=role, expected_epoch=expected_epoch)  # type: ignore[arg-type]
        with self._errors():
            return int(self._control.SetRole(request, timeout=CALL_TIMEOUT_S).role_epoch)

    def drain(self, worker: str) -> int:
        """Returns when it has left, another one in its place; how many requests it gave up. Raises as `scale`."""
        with self._errors():
            request = control_pb2.DrainRequest(worker=worker)
            return int(self._control.Drain(request, timeout=DRAIN_TIMEOUT_S).num_aborted)

    def shut_down(self, timeout_s: float) -> None:
        with self._errors():
            self._control.Shutdown(control_pb2.ShutdownRequest(), timeout=timeout_s)

    def changes(self, timeout_s: float) -> Iterator[control_pb2.Members]:
        """The membership now and after each change, until the time is over; then it just ends."""
        request = control_pb2.WatchRequest(protocol_version=PROTOCOL_VERSION)
        with self._errors():
            try:
                yield from self._membership.Watch(request, timeout=timeout_s)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            code = error.code()
            if code in REFUSALS:
                raise ControllerRefusedError(error.details()) from error
            raise ControllerUnreachableError(
                f"the controller at {self.address} did not answer: {code.name}, {error.details()}"
            ) from error
