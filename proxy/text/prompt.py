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

INLINE_CHARACTERS = 2000
INLINE_MESSAGES = 64
INLINE_IDS = 20_000
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
    adds_special_tokens: bool = True  # those that the model expects around a text


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    messages: tuple[ChatMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()  # definitions of functions, as OpenAI writes them


Prompt = TextPrompt | TokenPrompt | ChatPrompt


def check(prompt: Prompt, model: ServedModel, max_model_len: int) -> None:
    """Raises ApiError for a prompt that can be refused without tokenising it."""
    match prompt:
        case TextPrompt(text) if not text:
            raise invalid("prompt", "must not be empty")
        case TextPrompt(text):
            check_room(model.tokenizer.least_tokens(text), max_model_len, at_least=True)
        case TokenPrompt(ids):
            if not ids:
                raise invalid("prompt", "must not be empty")
            check_room(len(ids), max_model_len)
            for token_id in (min(ids), max(ids)):
                if not 0 <= token_id < model.vocab_size:
                    text = f"token id {token_id} is not in the vocabulary of {model.vocab_size} tokens"
                    raise invalid("prompt", text)
        case ChatPrompt(messages=messages):
            if not messages:
                raise invalid("messages", "must not be empty")
            for i, message in enumerate(messages):
                if message.role not in ROLES:
                    raise invalid(f"messages.{i}.role", f"must be one of {', '.join(ROLES)}")
                if message.role == "tool" and message.tool_call_id is None:
                    raise invalid(f"messages.{i}.tool_call_id", "a tool's message must say which call it answers")


def check_room(num_tokens: int, max_model_len: int, *, at_least: bool = False) -> int:
    """How many tokens may follow a prompt of this length. Raises ApiError when none may."""
    room = max_model_len - num_tokens
    if room < 1:
        raise invalid(
            "prompt",
            f"{'at least ' * at_least}{num_tokens} tokens are too many: "
            f"the context is {max_model_len} tokens and must hold at least one more",
            "context_length_exceeded",
        )
    return room


def is_large(prompt: Prompt) -> bool:
    """Whether reading and tokenising it would hold up everybody else."""
    match prompt:
        case TextPrompt(text):
            return len(text) > INLINE_CHARACTERS
        case TokenPrompt(ids):
            return len(ids) > INLINE_IDS
        case ChatPrompt(messages, tools):
            if len(messages) > INLINE_MESSAGES:
                return True
            calls = [call.arguments for message in messages for call in message.tool_calls]
            num_characters = sum(len(message.content) for message in messages)
            return num_characters > INLINE_CHARACTERS or len(json.dumps([tools, calls])) > INLINE_CHARACTERS


def all_to_ids(given: Sequence[Prompt], model: ServedModel, max_model_len: int) -> list[list[int]]:
    """Raises ApiError when the model cannot take one of them."""
    return [to_ids(prompt, model, max_model_len) for prompt in given]


def text(prompt: Prompt, ids: Sequence[int], model: ServedModel) -> str:
    """What an answer repeats that echoes its prompt. A character that it only begins belongs to what follows."""
    return prompt.text if isinstance(prompt, TextPrompt) else model.tokenizer.decode(ids)


def to_ids(prompt: Prompt, model: ServedModel, max_model_len: int) -> list[int]:
    """Raises ApiError when the model cannot take such a prompt; before it is tokenised when that is plain already."""
    tokenizer = model.tokenizer
    match prompt:
        case TextPrompt(text, adds_special_tokens):
            ids = tokenizer.encode(text, add_special_tokens=adds_special_tokens)
        case TokenPrompt(token_ids):
            ids = list(token_ids)
        case ChatPrompt(messages, tools):
            try:
                rendered = tokenizer.render_chat([message.for_template() for message in messages], tools)
            except (NoChatTemplate, ChatTemplateError) as error:
                raise invalid("messages", str(error)) from error
            check_room(tokenizer.least_tokens(rendered), max_model_len, at_least=True)
            ids = tokenizer.encode_rendered(rendered)
    if not ids:
        raise invalid("prompt", "gives no tokens")
    return ids
