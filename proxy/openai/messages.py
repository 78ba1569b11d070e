"""The messages of OpenAI's chats, as they are sent: text, calls of functions, and the results of calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from proxy.errors import invalid
from proxy.openai.unsupported import shortened
from proxy.text.prompt import ChatMessage, ToolCall


def _text_content(value: object) -> object:
    """A string, or a list of text parts, which are joined by line breaks."""
    if not isinstance(value, list):
        return value
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError('each part must be {"type": "text", "text": "…"}: only text is supported')
        texts.append(part["text"])
    return "\n".join(texts)


Content = Annotated[str | None, BeforeValidator(_text_content)]


class FunctionCall(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: str
    arguments: str


class MessageToolCall(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None  # as in the stream that it came from


class Message(BaseModel):
    """Fields that are not read land in `model_extra`, to be refused by name."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


def read_messages(messages: Sequence[Message]) -> tuple[ChatMessage, ...]:
    """Raises ApiError, naming the message by its place."""
    called: dict[str, str] = {}  # function by the call's id
    read = []
    for i, message in enumerate(messages):
        _check(message, f"messages.{i}")
        calls = tuple(
            ToolCall(call.id, call.function.name, _arguments(call, f"messages.{i}.tool_calls.{j}"))
            for j, call in enumerate(message.tool_calls or ())
        )
        called |= {call.call_id: call.name for call in calls}
        role = "system" if message.role == "developer" else message.role
        name = message.name or (called.get(message.tool_call_id) if message.tool_call_id else None)
        read.append(ChatMessage(role, message.content or "", calls, message.tool_call_id, name))
    return tuple(read)


def _check(message: Message, field: str) -> None:
    for name, value in (message.model_extra or {}).items():
        if value is not None and value != []:
            raise invalid(f"{field}.{shortened(name)}", "not supported by this server; leave it out")
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise invalid(f"{field}.content", "must be a string or a list of text parts")
    for name, role in (("tool_calls", "assistant"), ("tool_call_id", "tool"), ("name", "tool")):
        if message.role != role and getattr(message, name):
            raise invalid(f"{field}.{name}", f"only in a message of role {role}")


def _arguments(call: MessageToolCall, field: str) -> dict[str, Any]:
    """As an object, which templates want; OpenAI sends the text of one."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
        json.dumps(arguments, ensure_ascii=False).encode()  # an escape may stand for half a character
    except (ValueError, RecursionError) as error:
        raise invalid(f"{field}.function.arguments", f"is not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise invalid(f"{field}.function.arguments", "must be a JSON object, as text")
    return arguments
