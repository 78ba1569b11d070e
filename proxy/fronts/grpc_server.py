"""The gRPC front: `pdserve.v1.Inference`, health and reflection, over one `GenerationService`.

A call's status is the request's: an error is never an event, and a call that the client drops ends the request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from proxy.errors import ApiError, ErrorCode, invalid
from proxy.fronts.metadata import (
    answer_metadata,
    read_cache_salt,
    read_kv_mode,
    read_priority,
    read_write_back,
    refuse_headers,
)
from proxy.fronts.observe_servicer import ObserveServicer
from proxy.grammar.structured_output import StructuredOutput, from_kind
from proxy.request.event_buffer import Event, FinishedEvent, TokenEvent
from proxy.request.generation import Generation
from proxy.request.generation_request import GenerationRequest, new_request_id
from proxy.request.logprobs import TokenLogprobs
from proxy.request.priority import NORMAL
from proxy.request.sampling import Sampling
from proxy.service import GenerationService
from proxy.text.prompt import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from proxy.text.tokenizer import Tokenizer
from rpc import inference_pb2, inference_pb2_grpc, observe_pb2_grpc

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
Context = grpc.aio.ServicerContext[Any, Any]


class BindError(OSError):
    """The port cannot be taken."""


def build_server(service: GenerationService, max_body_bytes: int) -> tuple[grpc.aio.Server, HealthReport]:
    options = [
        ("grpc.max_receive_message_length", max_body_bytes),
        ("grpc.keepalive_time_ms", 20_000),  # a client that went away without a word is noticed, and its request ended
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # what clients may do in their turn
        ("grpc.so_reuseport", 0),  # a second proxy on the same port is an error, not a silent split of the clients
    ]
    server = grpc.aio.server(options=options)
    inference_pb2_grpc.add_InferenceServicer_to_server(InferenceServicer(service), server)
    observe_pb2_grpc.add_ObserveServicer_to_server(ObserveServicer(service), server)
    report = HealthReport()
    health_pb2_grpc.add_HealthServicer_to_server(report.servicer, server)
    reflection.enable_server_reflection((INFERENCE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server, report


def bind(server: grpc.aio.Server, address: str) -> int:
    """The port that was taken. Raises BindError."""
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise BindError(f"cannot listen on {address}: {error}") from error
    if port == 0:
        raise BindError(f"cannot listen on {address}")
    return port


class HealthReport:
    """Maintains what grpc.health.v1 answers, for the server and for Inference."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()

    async def set_ready(self, is_ready: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if is_ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", INFERENCE):
            await self.servicer.set(name, status)


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    def __init__(self, service: GenerationService) -> None:
        self._service = service

    async def Generate(  # noqa: N802  gRPC's name
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        request_id = request.request_id or metadata.get("x-request-id") or new_request_id()
        generation: Generation | None = None
        try:
            generation = await self._service.submit(self._request(request, request_id, metadata, context))
            yield self._started(generation)
            async for event in generation.events:
                yield _response(event, self._service.model.tokenizer)
            context.set_trailing_metadata(tuple(answer_metadata(generation.choices[0]).items()))
        except ApiError as error:
            await _abort(context, error, request_id)
        finally:
            if generation is not None:
                generation.cancel()

    async def Abort(  # noqa: N802
        self, request: inference_pb2.AbortRequest, context: Context
    ) -> inference_pb2.AbortResponse:
        if not request.request_id:
            await _abort(context, invalid("request_id", "must not be empty"), "")
        return inference_pb2.AbortResponse(found=self._service.abort(request.request_id))

    async def ListModels(  # noqa: N802
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        model = self._service.model
        served = inference_pb2.Model(name=model.name, max_model_len=self._service.max_model_len, created=model.created)
        return inference_pb2.ListModelsResponse(models=[served])

    def _request(
        self, request: inference_pb2.GenerateRequest, request_id: str, metadata: dict[str, str], context: Context
    ) -> GenerationRequest:
        priority = NORMAL
        try:
            refuse_headers(metadata)
            priority = read_priority(metadata)
            priority = read_priority(metadata, request.priority if request.HasField("priority") else None)
            salt = read_cache_salt(metadata, request.cache_salt if request.HasField("cache_salt") else None)
            mode, writes_back = read_kv_mode(metadata), read_write_back(metadata)
            prompt, sampling = _prompt(request), _sampling(request)
        except ApiError as error:
            self._service.count_refusal(request_id, error, priority)
            raise
        timeout_s = context.time_remaining()
        return GenerationRequest(
            request.model,
            request_id,
            (prompt,),
            sampling,
            timeout_s,
            priority,
            salt,
            kv_mode=mode,
            writes_back=writes_back,
        )

    def _started(self, generation: Generation) -> inference_pb2.GenerateResponse:
        started = inference_pb2.Started(
            request_id=generation.request_id,
            model=self._service.model.name,
            prompt_tokens=generation.num_prompt_tokens,
        )
        return inference_pb2.GenerateResponse(started=started)


def _prompt(request: inference_pb2.GenerateRequest) -> Prompt:
    match request.WhichOneof("prompt"):
        case "text":
            return TextPrompt(request.text)
        case "token_ids":
            return TokenPrompt(tuple(request.token_ids.ids))
        case "chat":
            return ChatPrompt(tuple(ChatMessage(m.role, m.content) for m in request.chat.messages))
        case _:
            raise invalid("prompt", "one of text, token_ids and chat must be set")


def _sampling(request: inference_pb2.GenerateRequest) -> Sampling:
    given = request.sampling

    def optional(name: str) -> Any:
        return getattr(given, name) if given.HasField(name) else None

    return Sampling(
        max_tokens=optional("max_tokens"),
        temperature=optional("temperature"),
        top_p=optional("top_p"),
        top_k=optional("top_k"),
        seed=optional("seed"),
        stop_token_ids=tuple(given.stop_token_ids),
        ignore_eos=given.ignore_eos,
        stop=tuple(request.stop),
        include_stop_str_in_output=request.include_stop_str_in_output,
        min_p=given.min_p,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        repetition_penalty=given.repetition_penalty if given.HasField("repetition_penalty") else 1.0,
        logit_bias=tuple(given.logit_bias.items()),
        min_tokens=given.min_tokens,
        num_logprobs=optional("logprobs"),
        n=request.n if request.HasField("n") else 1,
        structured_output=_structured_output(request.structured_output),
    )


def _structured_output(given: inference_pb2.StructuredOutput) -> StructuredOutput | None:
    kind = given.WhichOneof("kind")
    return None if kind is None else from_kind(kind, getattr(given, kind), f"structured_output.{kind}")


def _response(event: Event, tokenizer: Tokenizer) -> inference_pb2.GenerateResponse:
    match event:
        case TokenEvent():
            token = inference_pb2.Token(
                index=event.index,
                ids=event.ids,
                text=event.text,
                logprobs=[_logprobs(told, tokenizer) for told in event.logprobs],
                choice=event.choice,
            )
            return inference_pb2.GenerateResponse(token=token)
        case FinishedEvent():
            usage, timings, route = event.usage, event.timings, event.route
            finished = inference_pb2.Finished(
                reason=event.reason,
                usage=inference_pb2.Usage(
                    prompt_tokens=usage.prompt_tokens,
                    completion_tokens=usage.completion_tokens,
                    cached_tokens=usage.cached_tokens,
                ),
                timings=inference_pb2.Timings(
                    queue_s=timings.queue_s,
                    time_to_first_token_s=timings.time_to_first_token_s,
                    total_s=timings.total_s,
                ),
                path=route.path,
                prefill_worker=route.prefill_worker or "",
                decode_worker=route.decode_worker or "",
                choice=event.choice,
            )
            return inference_pb2.GenerateResponse(finished=finished)


def _logprobs(told: TokenLogprobs, tokenizer: Tokenizer) -> inference_pb2.Logprobs:
    chosen, *top = (
        inference_pb2.Logprob(id=each.token_id, logprob=each.logprob, token=tokenizer.token_bytes(each.token_id))
        for each in (told.chosen, *told.top)
    )
    return inference_pb2.Logprobs(chosen=chosen, top=top)


async def _abort(context: Context, error: ApiError, request_id: str) -> NoReturn:
    metadata = [("x-error-code", error.reason or error.code.value)]
    if error.param is not None:
        metadata.append(("x-error-param", error.param))
    if error.retry_after_s is not None:
        metadata.append(("retry-after", str(error.retry_after_s)))
    if error.code is not ErrorCode.INVALID_ARGUMENT:  # there the id itself may be what is wrong
        metadata.append(("x-request-id", request_id))
    await context.abort(error.status.grpc, error.message, tuple(metadata))
    raise AssertionError("abort does not return")
