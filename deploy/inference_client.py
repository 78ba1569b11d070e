"""A client of the proxy's `Inference`: one generation as an iterator of text."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from deploy.channel import open_channel
from deploy.cluster_access import ClusterAccess
from deploy.errors import CommandError
from rpc import inference_pb2, inference_pb2_grpc


class GenerationFailedError(CommandError):
    """The proxy refused or broke off; `code` is gRPC's."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code


def chat_request(prompt: str, **sampling: object) -> inference_pb2.GenerateRequest:
    message = inference_pb2.ChatMessage(role="user", content=prompt)
    return inference_pb2.GenerateRequest(
        chat=inference_pb2.ChatMessages(messages=[message]), sampling=_sampling(sampling)
    )


def text_request(prompt: str, **sampling: object) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(text=prompt, sampling=_sampling(sampling))


class Generation:
    """Iterates over the pieces of text as they come; `finished` is there after the last one."""

    def __init__(
        self,
        address: str,
        request: inference_pb2.GenerateRequest,
        timeout_s: float,
        access: ClusterAccess | None = None,
    ) -> None:
        """`access`: where the proxy has TLS or keys."""
        self.finished: inference_pb2.Finished | None = None
        self._tls = None if access is None else access.proxy
        self._metadata = () if access is None else access.metadata
        self._address = address
        self._request = request
        self._timeout_s = timeout_s

    def __iter__(self) -> Iterator[str]:
        """Raises GenerationFailedError."""
        with open_channel(self._address, self._tls) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            try:
                calling = {"timeout": self._timeout_s, "metadata": self._metadata}
                for response in stub.Generate(self._request, wait_for_ready=True, **calling):
                    match response.WhichOneof("event"):
                        case "token":
                            yield response.token.text
                        case "finished":
                            self.finished = response.finished
            except grpc.RpcError as error:
                raise GenerationFailedError(error.code(), error.details() or "") from error


def _sampling(values: dict[str, object]) -> inference_pb2.Sampling:
    return inference_pb2.Sampling(**{name: value for name, value in values.items() if value is not None})  # type: ignore[arg-type]
