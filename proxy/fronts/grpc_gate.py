"""The gate before the gRPC front: no method is reached without it but those of grpc.health.v1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from proxy.access.caller import Scope
from proxy.access.gate import Gate
from proxy.errors import ApiError
from proxy.fronts.grpc_errors import Context, abort

OPEN = ("/grpc.health.v1.Health/",)
ANY_KEY = ("/grpc.reflection.",)
OBSERVING = ("/pdserve.v1.Observe/",)
Details = grpc.HandlerCallDetails
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class GrpcGate(grpc.aio.ServerInterceptor):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(
        self, continuation: Callable[[Details], Awaitable[Handler]], handler_call_details: Details
    ) -> Handler:
        if not handler_call_details.method.startswith(OPEN):
            try:
                self._admit(handler_call_details)
            except ApiError as error:
                return _refusal(error)
        return await continuation(handler_call_details)

    def _admit(self, details: Details) -> None:
        values: dict[str, list[str]] = {"authorization": [], "x-tenant": []}
        for key, value in details.invocation_metadata or ():
            if key in values:
                values[key].append(str(value))
        self._gate.admit(values["authorization"], values["x-tenant"], _needed(details.method))


def _needed(method: str) -> Scope | None:
    if method.startswith(ANY_KEY):
        return None
    return Scope.OBSERVE if method.startswith(OBSERVING) else Scope.INFERENCE


def _refusal(error: ApiError) -> Handler:
    """A method of any kind can be refused like one of streams: nothing is read or sent before the status."""

    async def refuse(_requests: object, context: Context) -> None:
        await abort(context, error, "")

    return grpc.stream_stream_rpc_method_handler(refuse)
