"""OpenAI's request bodies: parsed strictly, checked by name, and turned into `GenerationRequest`.

Whatever is wrong with a body, the error names the field; nothing is ignored in silence (`unsupported.py`).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from proxy.errors import ApiError, ErrorCode, invalid
from proxy.prompt import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from proxy.sampling import Sampling
from proxy.unsupported import refuse_fields, shortened

SURROGATE = re.compile(r"[\ud800-\udfff]")


def _stop_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _text_content(value: object) -> object:
    """A string, or a list of text parts, which are joined by line breaks."""
    if value is None:
        raise ValueError("must be a string, not null")
    if not isinstance(value, list):
        return value
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError('each part must be {"type": "text", "text": "…"}: only text is supported')
        texts.append(part["text"])
    return "\n".join(texts)


Content = Annotated[str, BeforeValidator(_text_content)]
Stop = Annotated[list[str], BeforeValidator(_stop_list)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # accepted, and never done


class Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class GenerationBody(BaseModel):
    """What both endpoints have in common. Fields that are not read land in `model_extra`, to be refused by name."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False)

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: Stop | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None  # a label of the client's own
    metadata: dict[str, str] | None = None  # likewise

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def limit(self) -> int | None:
        return self.max_tokens

    def sampling(self) -> Sampling:
        return Sampling(
            max_tokens=self.limit(),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            stop=tuple(self.stop or ()),
        )


class CompletionBody(GenerationBody):
    prompt: Any = Field(
        json_schema_extra={
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}],
            "description": "A text, or its token ids. A list with one of either is accepted too.",
        }
    )

    def to_prompt(self) -> Prompt:
        return _completion_prompt(self.prompt)


class ChatBody(GenerationBody):
    messages: list[Message]
    max_completion_tokens: int | None = None

    def limit(self) -> int | None:
        if self.max_completion_tokens is None:
            return self.max_tokens
        if self.max_tokens is not None and self.max_tokens != self.max_completion_tokens:
            raise invalid("max_completion_tokens", "max_tokens says otherwise: send one of the two")
        if self.max_completion_tokens < 1:
            raise invalid("max_completion_tokens", f"must be at least 1, not {self.max_completion_tokens}")
        return self.max_completion_tokens

    def to_prompt(self) -> Prompt:
        for i, message in enumerate(self.messages):
            for name, value in (message.model_extra or {}).items():
                if value is not None and value != []:
                    raise invalid(f"messages.{i}.{shortened(name)}", "not supported by this server; leave it out")
        return ChatPrompt(
            tuple(ChatMessage("system" if m.role == "developer" else m.role, m.content) for m in self.messages)
        )


def parse(body: bytes, kind: type[CompletionBody] | type[ChatBody]) -> CompletionBody | ChatBody:
    """Raises ApiError, naming the field or the place in the JSON."""
    try:
        parsed = kind.model_validate_json(body)
    except ValidationError as error:
        raise _as_api_error(error) from error
    refuse_fields(parsed.model_extra or {})
    if parsed.stream_options is not None and not parsed.streams:
        raise invalid("stream_options", "only with stream: true")
    return parsed


def _completion_prompt(value: object) -> Prompt:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return TextPrompt(value)
    if not isinstance(value, list):
        raise invalid("prompt", "must be a string or a list of token ids")
    if value and all(isinstance(item, str | list) for item in value):
        raise invalid("prompt", f"a list of {len(value)} prompts is not supported by this server: send one at a time")
    if not all(type(item) is int for item in value):
        raise invalid("prompt", "must be a string or a list of token ids, which are whole numbers")
    return TokenPrompt(tuple(value))


def _as_api_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        text = f"the body is not valid JSON: {message.removeprefix('Invalid JSON: ')}"
        return ApiError(ErrorCode.INVALID_ARGUMENT, text, reason="invalid_json")
    param = SURROGATE.sub("\ufffd", ".".join(shortened(str(part)) for part in first["loc"]))
    if not param:
        return ApiError(ErrorCode.INVALID_ARGUMENT, "the body must be a JSON object", reason="invalid_json")
    if first["type"] == "missing":
        return invalid(param, "this field is required", "missing_field")
    if first["type"] == "extra_forbidden":
        return invalid(param, "unknown field", "unknown_field")
    return invalid(param, message[0].lower() + message[1:], "invalid_value")
