"""`inference.GRPCInferenceService`, KServe's protocol with Triton's stream, over one `GenerationService`.

A request is one of `/v1/completions` in other clothes. A call that the client drops ends its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
from collections.abc import AsyncIterator

from proxy.access.gate import current_caller
from proxy.errors import ApiError, invalid
from proxy.fronts import refusal
from proxy.fronts.asked import generation_request
from proxy.fronts.grpc_errors import Context, abort
from proxy.fronts.kserve_answer import OUTPUTS, Piece, answer, model_metadata, pieces_of
from proxy.fronts.kserve_request import read_request
from proxy.fronts.metadata import answer_metadata
from proxy.request.event_buffer import FinishedEvent
from proxy.request.generation_request import new_request_id
from proxy.request.reading import Reading
from proxy.service import GenerationService
from rpc import kserve_pb2, kserve_pb2_grpc

MAX_STREAM_REQUESTS = 128  # of one stream at a time; the next is read when one of them ends


class KserveServicer(kserve_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, service: GenerationService) -> None:
        self._service = service

    async def ServerLive(  # noqa: N802  gRPC's name
        self, request: kserve_pb2.ServerLiveRequest, context: Context
    ) -> kserve_pb2.ServerLiveResponse:
        return kserve_pb2.ServerLiveResponse(live=True)

    async def ServerReady(  # noqa: N802
        self, request: kserve_pb2.ServerReadyRequest, context: Context
    ) -> kserve_pb2.ServerReadyResponse:
        return kserve_pb2.ServerReadyResponse(ready=self._service.is_ready)

    async def ModelReady(  # noqa: N802
        self, request: kserve_pb2.ModelReadyRequest, context: Context
    ) -> kserve_pb2.ModelReadyResponse:
        is_served = request.name == self._service.model.name and request.version in ("", "1")
        return kserve_pb2.ModelReadyResponse(ready=is_served and self._service.is_ready)

    async def ServerMetadata(  # noqa: N802
        self, request: kserve_pb2.ServerMetadataRequest, context: Context
    ) -> kserve_pb2.ServerMetadataResponse:
        return kserve_pb2.ServerMetadataResponse(name="pdserve", version=importlib.metadata.version("pdserve"))

    async def ModelMetadata(  # noqa: N802
        self, request: kserve_pb2.ModelMetadataRequest, context: Context
    ) -> kserve_pb2.ModelMetadataResponse:
        try:
            self._service.check_model(request.name)
        except ApiError as error:
            await abort(context, error, "")
        return model_metadata(self._service.model.name)

    async def ModelInfer(  # noqa: N802
        self, request: kserve_pb2.ModelInferRequest, context: Context
    ) -> kserve_pb2.ModelInferResponse:
        given = dict(context.invocation_metadata() or ()).get("x-request-id")
        request_id = str(given or new_request_id())  # `request.id` is the client's own, and need not be unique
        try:
            async with self._generation(request, request_id, context, may_stream=False) as (generation, _):
                pieces = await _whole(generation)
                context.set_trailing_metadata(tuple(answer_metadata(generation.choices[0]).items()))
        except ApiError as error:
            await abort(context, error, request_id)
        return answer(request, self._service.model.name, pieces, is_final=True)

    async def ModelStreamInfer(  # noqa: N802
        self, requests: AsyncIterator[kserve_pb2.ModelInferRequest], context: Context
    ) -> None:
        places = asyncio.Semaphore(MAX_STREAM_REQUESTS)
        writing = asyncio.Lock()
        async with asyncio.TaskGroup() as tasks:
            async for request in requests:
                await places.acquire()
                task = tasks.create_task(self._answer(request, context, writing))
                task.add_done_callback(lambda _: places.release())

    async def _answer(self, request: kserve_pb2.ModelInferRequest, context: Context, writing: asyncio.Lock) -> None:
        async def write(response: kserve_pb2.ModelStreamInferResponse) -> None:
            async with writing:
                await context.write(response)

        try:
            async with self._generation(request, new_request_id(), context, may_stream=True) as (generation, streams):
                async for response in self._responses(request, generation, streams=streams):
                    await write(kserve_pb2.ModelStreamInferResponse(infer_response=response))
        except ApiError as error:
            failed = kserve_pb2.ModelInferResponse(model_name=self._service.model.name, id=request.id)
            failed.parameters["triton_final_response"].bool_param = True
            await write(kserve_pb2.ModelStreamInferResponse(error_message=error.message, infer_response=failed))

    async def _responses(
        self, request: kserve_pb2.ModelInferRequest, generation: Reading, *, streams: bool
    ) -> AsyncIterator[kserve_pb2.ModelInferResponse]:
        """Raises ApiError."""
        name = self._service.model.name
        if not streams:
            yield answer(request, name, await _whole(generation), is_final=True)
            return
        num_running = len(generation.choices)
        async for event in generation.events:
            for piece in pieces_of(event):
                num_running -= piece.end is not None
                yield answer(request, name, [piece], is_final=not num_running)

    @contextlib.asynccontextmanager
    async def _generation(
        self, request: kserve_pb2.ModelInferRequest, request_id: str, context: Context, *, may_stream: bool
    ) -> AsyncIterator[tuple[Reading, bool]]:
        """The generation, admitted, and whether its pieces are wanted; on the way out nothing of it is left running.

        Raises ApiError.
        """
        metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        with refusal.counted(self._service, metadata, request_id):
            read = read_request(request, tuple(OUTPUTS))
            if read.body.streams and not may_stream:
                raise invalid("stream", "true only with ModelStreamInfer")
            limits_s = [limit for limit in (context.time_remaining(), read.timeout_s) if limit is not None]
            timeout_s = min(limits_s, default=None)
            asked = generation_request(read.body, metadata, current_caller(), request_id, timeout_s)
        generation = await self._service.submit(asked)
        try:
            yield generation, read.body.streams
        finally:
            generation.cancel()


async def _whole(generation: Reading) -> list[Piece]:
    """Raises ApiError."""
    texts = [""] * len(generation.choices)
    ends: dict[int, FinishedEvent] = {}
    async for event in generation.events:
        if isinstance(event, FinishedEvent):
            ends[event.choice] = event
        else:
            texts[event.choice] += event.text
    return [Piece(text, index, ends[index]) for index, text in enumerate(texts)]
