"""A prompt as the client gave it: text, token ids or chat messages; and the token ids it becomes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.errors import invalid
from proxy.model import ServedModel
from proxy.text.chat_template import ChatTemplateError
from proxy.text.tokenizer import NoChatTemplate

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function that the assistant made."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # the assistant's
    tool_call_id: str | None = None  # of a tool's message: what it answers
    name: str | None = None  # likewise: the function

    def for_template(self) -> dict[str, Any]:
        """As chat templates know messages: what a message does not have is not there."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        named = {"tool_call_id": self.tool_call_id, "name": self.name}
        return message | {key: value for key, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class TextPrompt:
    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    messages: tuple[ChatMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()  # definitions of functions, as OpenAI writes them


Prompt = TextPrompt | TokenPrompt | ChatPrompt


def check(prompt: Prompt, vocab_size: int, max_model_len: int) -> None:
    """Raises ApiError for a prompt that can be refused without tokenising it."""
    match prompt:
        case TextPrompt(text) if not text:
            raise invalid("prompt", "must not be empty")
        case TokenPrompt(ids):
            if not ids:
                raise invalid("prompt", "must not be empty")
            check_room(len(ids), max_model_len)
            for token_id in (min(ids), max(ids)):
                if not 0 <= token_id < vocab_size:
                    raise invalid("prompt", f"token id {token_id} is not in the vocabulary of {vocab_size} tokens")
        case ChatPrompt(messages=messages):
            if not messages:
                raise invalid("messages", "must not be empty")
            for i, message in enumerate(messages):
                if message.role not in ROLES:
                    raise invalid(f"messages.{i}.role", f"must be one of {', '.join(ROLES)}")
                if message.role == "tool" and message.tool_call_id is None:
                    raise invalid(f"messages.{i}.tool_call_id", "a tool's message must say which call it answers")


def check_room(num_tokens: int, max_model_len: int) -> int:
    """How many tokens may follow a prompt of this length. Raises ApiError when none may."""
    room = max_model_len - num_tokens
    if room < 1:
        raise invalid(
            "prompt",
            f"{num_tokens} tokens are too many: the context is {max_model_len} tokens and must hold at least one more",
            "context_length_exceeded",
        )
    return room


def num_characters(prompt: Prompt) -> int:
    """What decides whether tokenising it would hold up everybody else."""
    match prompt:
        case TextPrompt(text):
            return len(text)
        case ChatPrompt(messages, tools):
            calls = [call.arguments for message in messages for call in message.tool_calls]
            return sum(len(message.content) + 16 for message in messages) + len(json.dumps([tools, calls]))
        case TokenPrompt():
            return 0


def all_to_ids(given: Sequence[Prompt], model: ServedModel) -> list[list[int]]:
    return [to_ids(prompt, model) for prompt in given]


def text(prompt: Prompt, ids: Sequence[int], model: ServedModel) -> str:
    """What an answer repeats that echoes its prompt. A character that it only begins belongs to what follows."""
    return prompt.text if isinstance(prompt, TextPrompt) else model.tokenizer.decode(ids)


def to_ids(prompt: Prompt, model: ServedModel) -> list[int]:
    """Raises ApiError when the model cannot take such a prompt."""
    match prompt:
        case TextPrompt(text):
            ids = model.tokenizer.encode(text)
        case TokenPrompt(token_ids):
            ids = list(token_ids)
        case ChatPrompt(messages, tools):
            try:
                ids = model.tokenizer.encode_chat([message.for_template() for message in messages], tools)
            except (NoChatTemplate, ChatTemplateError) as error:
                raise invalid("messages", str(error)) from error
    if not ids:
        raise invalid("prompt", "gives no tokens")
    return ids
