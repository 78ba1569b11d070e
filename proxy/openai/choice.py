"""One choice of an OpenAI answer, whole or as the choices of a stream's chunks: its text, logprobs and end.

An entry of the logprobs goes out with the text that its token begins in, which may have been held back; entries of
tokens without a text that is sent go out at the end. None is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from proxy.openai.logprobs import chat_logprobs, completion_logprobs
from proxy.request.event_buffer import Event, FinishedEvent, TokenEvent
from proxy.request.logprobs import TokenLogprobs
from proxy.text.tokenizer import Tokenizer

ToLogprobs = Callable[[Sequence[TokenLogprobs], Tokenizer], dict[str, Any]]
LOGPROBS: dict[str, ToLogprobs] = {"chat": chat_logprobs, "text": completion_logprobs}


class Choice:
    """Maintains the text and the logprobs that are not sent yet."""

    def __init__(
        self,
        kind: Literal["chat", "text"],
        index: int,
        tokenizer: Tokenizer,
        *,
        has_logprobs: bool,
        echoed: str = "",
    ) -> None:
        """`echoed`: the prompt's text, where the answer repeats it."""
        self._kind = kind
        self._index = index
        self._tokenizer = tokenizer
        self._to_logprobs = LOGPROBS[kind] if has_logprobs else None
        self._texts = [echoed]
        self._told: list[TokenLogprobs] = []
        self._num_sent = 0  # characters
        self._is_open = False

    def add(self, event: TokenEvent) -> None:
        self._texts.append(event.text)
        self._told += event.logprobs

    def whole(self, end: FinishedEvent) -> dict[str, Any]:
        text = self._take_text()
        content: dict[str, Any] = {"text": text}
        if self._kind == "chat":
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return self._object(content, end.reason)

    def stream(self, event: Event) -> list[dict[str, Any]]:
        """What the event adds to the stream, in order."""
        opening = [] if self._is_open else self._opening()
        self._is_open = True
        if isinstance(event, FinishedEvent):
            return [*opening, *self._closing(event)]
        self.add(event)
        return [*opening, *self._pieces()]

    def _opening(self) -> list[dict[str, Any]]:
        """What is sent before the first tokens: who speaks, or the echoed prompt."""
        if self._kind == "chat":
            return [self._object({"delta": {"role": "assistant", "content": ""}}, None)]
        return self._pieces()

    def _pieces(self) -> list[dict[str, Any]]:
        """The text that came since the last piece, if any."""
        text = self._take_text()
        if not text:
            return []
        return [self._object({"delta": {"content": text}} if self._kind == "chat" else {"text": text}, None)]

    def _closing(self, end: FinishedEvent) -> list[dict[str, Any]]:
        return [self._object({"delta": {}} if self._kind == "chat" else {"text": ""}, end.reason)]

    def _take_text(self) -> str:
        text, self._texts = "".join(self._texts), []
        self._num_sent += len(text)
        return text

    def _object(self, content: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        told = self._take_told(is_last=finish_reason is not None)
        logprobs = self._to_logprobs(told, self._tokenizer) if self._to_logprobs is not None and told else None
        return {"index": self._index, **content, "logprobs": logprobs, "finish_reason": finish_reason}

    def _take_told(self, *, is_last: bool) -> list[TokenLogprobs]:
        ready = len(self._told)
        if not is_last:
            ready = sum(entry.text_offset < self._num_sent for entry in self._told)  # offsets never fall
        told, self._told = self._told[:ready], self._told[ready:]
        return told
