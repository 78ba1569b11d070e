"""`pdserve.v1.Inference`'s messages, and what they stand for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proxy.errors import invalid
from proxy.grammar.structured_output import StructuredOutput, from_kind
from proxy.request.event_buffer import Event, FinishedEvent, TokenEvent
from proxy.request.logprobs import TokenLogprobs
from proxy.request.sampling import Sampling
from proxy.text.prompt import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from proxy.text.tokenizer import Tokenizer
from rpc import inference_pb2


@dataclass(frozen=True, slots=True)
class AskedByMessage:
    """A `GenerateRequest`, read as `Asked`."""

    message: inference_pb2.GenerateRequest

    @property
    def model(self) -> str:
        return self.message.model

    @property
    def priority(self) -> int | None:
        return self.message.priority if self.message.HasField("priority") else None

    @property
    def cache_salt(self) -> str | None:
        return self.message.cache_salt if self.message.HasField("cache_salt") else None

    def to_prompts(self) -> tuple[Prompt, ...]:
        return (_prompt(self.message),)

    def sampling(self) -> Sampling:
        return _sampling(self.message)


def read_text_or_chat(request: inference_pb2.TokenizeRequest) -> TextPrompt | ChatPrompt:
    match request.WhichOneof("prompt"):
        case "text":
            adds_special_tokens = request.add_special_tokens or not request.HasField("add_special_tokens")
            return TextPrompt(request.text, adds_special_tokens)
        case "chat":
            if request.HasField("add_special_tokens"):
                raise invalid("add_special_tokens", "only with text")
            return _chat(request.chat)
        case _:
            raise invalid("prompt", "one of text and chat must be set")


def _prompt(request: inference_pb2.GenerateRequest) -> Prompt:
    match request.WhichOneof("prompt"):
        case "text":
            return TextPrompt(request.text)
        case "token_ids":
            return TokenPrompt(tuple(request.token_ids.ids))
        case "chat":
            return _chat(request.chat)
        case _:
            raise invalid("prompt", "one of text, token_ids and chat must be set")


def _chat(chat: inference_pb2.ChatMessages) -> ChatPrompt:
    return ChatPrompt(tuple(ChatMessage(m.role, m.content) for m in chat.messages))


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


def response_message(event: Event, tokenizer: Tokenizer) -> inference_pb2.GenerateResponse:
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
