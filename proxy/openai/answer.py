"""OpenAI's answers: one JSON object, or the chunks of a stream, for both endpoints. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxy.errors import ApiError
from proxy.request.event_buffer import Usage

DONE = b"data: [DONE]\n\n"


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def error_object(error: ApiError) -> dict[str, Any]:
    code = error.reason or error.code.value
    return {"error": {"message": error.message, "type": error.status.type, "param": error.param, "code": code}}


def sse(content: dict[str, Any]) -> bytes:
    """One event of a stream."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """What all objects of one request share."""

    kind: Literal["chat", "text"]
    request_id: str
    model: str
    created: int = 0  # Unix seconds
    wants_usage: bool = False  # in the stream: null in each chunk, then once, last

    def whole(self, choices: Sequence[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {**self._head(is_chunk=False), "choices": list(choices), "usage": usage_object(usage)}

    def chunk(self, choice: dict[str, Any]) -> bytes:
        usage = {"usage": None} if self.wants_usage else {}
        return sse({**self._head(is_chunk=True), "choices": [choice], **usage})

    def closing(self, usage: Usage) -> list[bytes]:
        """What is sent after the last choice's end."""
        if not self.wants_usage:
            return [DONE]
        return [sse({**self._head(is_chunk=True), "choices": [], "usage": usage_object(usage)}), DONE]

    def _head(self, *, is_chunk: bool) -> dict[str, Any]:
        name = "text_completion"
        if self.kind == "chat":
            name = "chat.completion.chunk" if is_chunk else "chat.completion"
        prefix = "chatcmpl" if self.kind == "chat" else "cmpl"
        return {
            "id": f"{prefix}-{self.request_id}",
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }
