"""A prompt as the client gave it: text, token ids or chat messages; and the token ids it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.chat_template import ChatTemplateError
from proxy.errors import invalid
from proxy.model import ServedModel
from proxy.tokenizer import NoChatTemplate

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class TextPrompt:
    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    messages: tuple[ChatMessage, ...]


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
        case ChatPrompt(messages):
            if not messages:
                raise invalid("messages", "must not be empty")
            for i, message in enumerate(messages):
                if message.role not in ROLES:
                    raise invalid(f"messages.{i}.role", f"must be one of {', '.join(ROLES)}")


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
        case ChatPrompt(messages):
            return sum(len(message.content) + 16 for message in messages)
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
        case ChatPrompt(messages):
            try:
                ids = model.tokenizer.encode_chat([{"role": m.role, "content": m.content} for m in messages])
            except (NoChatTemplate, ChatTemplateError) as error:
                raise invalid("messages", str(error)) from error
    if not ids:
        raise invalid("prompt", "gives no tokens")
    return ids
