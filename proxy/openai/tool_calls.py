"""One choice of a chat's answer that may call functions, whole or streamed, as OpenAI writes calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.openai.choice import Choice
from proxy.request.event_buffer import FinishedEvent
from proxy.text.tokenizer import Tokenizer
from proxy.tools.tool_call_parser import ArgumentsPiece, CallBegin, ContentPiece, Piece, ToolCallParser


class ToolCallChoice(Choice):
    """A choice whose text is heard by a parser."""

    def __init__(self, index: int, tokenizer: Tokenizer, parser: ToolCallParser, *, has_logprobs: bool) -> None:
        super().__init__("chat", index, tokenizer, has_logprobs=has_logprobs)
        self._parser = parser

    def whole(self, end: FinishedEvent) -> dict[str, Any]:
        pieces = self._parser.add(self._take_text())
        last, reason = self._parser.finish(end.reason)
        return self._object({"message": _message([*pieces, *last])}, reason)

    def _opening(self) -> list[dict[str, Any]]:
        return [self._object({"delta": {"role": "assistant", "content": None}}, None)]

    def _pieces(self) -> list[dict[str, Any]]:
        return self._deltas(self._parser.add(self._take_text()))

    def _closing(self, end: FinishedEvent) -> list[dict[str, Any]]:
        last, reason = self._parser.finish(end.reason)
        return [*self._deltas(last), self._object({"delta": {}}, reason)]

    def _deltas(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        return [self._object({"delta": _delta(piece)}, None) for piece in pieces]


def _delta(piece: Piece) -> dict[str, Any]:
    match piece:
        case ContentPiece(text):
            return {"content": text}
        case CallBegin(index):
            return {"tool_calls": [{"index": index, **_call(piece)}]}
        case ArgumentsPiece(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _message(pieces: Sequence[Piece]) -> dict[str, Any]:
    content = ""
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        match piece:
            case ContentPiece(text):
                content += text
            case CallBegin():
                calls.append(_call(piece))
            case ArgumentsPiece(index, text):
                calls[index]["function"]["arguments"] += text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    return {**message, "content": content or None, "tool_calls": calls} if calls else message


def _call(begin: CallBegin) -> dict[str, Any]:
    return {"id": begin.call_id, "type": "function", "function": {"name": begin.name, "arguments": ""}}
