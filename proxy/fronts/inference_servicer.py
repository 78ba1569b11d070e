"""`pdserve.v1.Inference` over one `GenerationService`.

A call's status is the request's: an error is never an event, and a call that the client drops ends the request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from proxy.access.gate import current_caller
from proxy.errors import ApiError, invalid
from proxy.fronts import refusal
from proxy.fronts.asked import generation_request
from proxy.fronts.grpc_errors import Context, abort
from proxy.fronts.inference_messages import AskedByMessage, read_text_or_chat, response_message
from proxy.fronts.metadata import answer_metadata
from proxy.fronts.tokenization import Tokenization
from proxy.request.generation_request import new_request_id
from proxy.request.reading import Reading
from proxy.service import GenerationService
from rpc import inference_pb2, inference_pb2_grpc


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    def __init__(self, service: GenerationService) -> None:
        self._service = service
        self._tokenization = Tokenization(service)

    async def Generate(  # noqa: N802  gRPC's name
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        request_id = request.request_id or metadata.get("x-request-id") or new_request_id()
        generation: Reading | None = None
        try:
            with refusal.counted(self._service, metadata, request_id):
                asked, timeout_s = AskedByMessage(request), context.time_remaining()
                wanted = generation_request(asked, metadata, current_caller(), request_id, timeout_s)
            generation = await self._service.submit(wanted)
            yield self._started(generation)
            async for event in generation.events:
                yield response_message(event, self._service.model.tokenizer)
            context.set_trailing_metadata(tuple(answer_metadata(generation.choices[0]).items()))
        except ApiError as error:
            await abort(context, error, request_id)
        finally:
            if generation is not None:
                generation.cancel()

    async def Abort(  # noqa: N802
        self, request: inference_pb2.AbortRequest, context: Context
    ) -> inference_pb2.AbortResponse:
        if not request.request_id:
            await abort(context, invalid("request_id", "must not be empty"), "")
        return inference_pb2.AbortResponse(found=self._service.abort(request.request_id, current_caller().tenant))

    async def ListModels(  # noqa: N802
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        model = self._service.model
        served = inference_pb2.Model(name=model.name, max_model_len=self._service.max_model_len, created=model.created)
        return inference_pb2.ListModelsResponse(models=[served])

    async def Tokenize(  # noqa: N802
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        try:
            ids = await self._tokenization.to_ids(request.model, read_text_or_chat(request))
        except ApiError as error:
            await abort(context, error, "")
        tokens = map(self._service.model.tokenizer.token_bytes, ids)
        return inference_pb2.TokenizeResponse(ids=ids, max_model_len=self._service.max_model_len, tokens=tokens)

    async def Detokenize(  # noqa: N802
        self, request: inference_pb2.DetokenizeRequest, context: Context
    ) -> inference_pb2.DetokenizeResponse:
        try:
            text = await self._tokenization.to_text(request.model, request.ids)
        except ApiError as error:
            await abort(context, error, "")
        return inference_pb2.DetokenizeResponse(text=text)

    def _started(self, generation: Reading) -> inference_pb2.GenerateResponse:
        started = inference_pb2.Started(
            request_id=generation.request_id,
            model=self._service.model.name,
            prompt_tokens=generation.num_prompt_tokens,
        )
        return inference_pb2.GenerateResponse(started=started)
