"""What the client sees of a request's tokens: text without halves of characters and without stop strings.

Pure; `add` takes each accepted token once, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.request.logprobs import TokenLogprobs, read_logprobs
from proxy.text.detokenizer import Detokenizer
from proxy.text.stop_strings import StopStrings
from rpc import worker_pb2


@dataclass(frozen=True, slots=True)
class Piece:
    ids: tuple[int, ...]  # those that count: after a stop string is complete, no more do
    text: str
    finish_reason: str | None  # stop | length; None while it goes on
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each id, where the worker told them


class TextOutput:
    """Maintains how many tokens and characters there were, those too that are held back or cut off."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop_strings: StopStrings,
        *,
        min_tokens: int = 0,
        includes_stop: bool = False,
    ) -> None:
        """`min_tokens`: no stop string ends the text before; `includes_stop`: a stop token's own text counts too."""
        self._detokenizer = detokenizer
        self._stop_strings = stop_strings
        self._min_tokens = min_tokens
        self._includes_stop = includes_stop
        self._num_tokens = 0
        self._num_characters = 0

    def add(
        self,
        ids: Sequence[int],
        finish_reason: str | None,
        logprobs: Sequence[worker_pb2.TokenLogprobs] = (),
    ) -> Piece:
        """`finish_reason` is the engine's, for the last of `ids`; a stop token itself has no text."""
        texts: list[str] = []
        told: list[TokenLogprobs] = []
        for position, token_id in enumerate(ids):
            self._num_tokens += 1
            if logprobs:
                told.append(read_logprobs(token_id, logprobs[position], self._num_characters))
            if finish_reason == "stop" and position == len(ids) - 1 and not self._includes_stop:
                break
            text, stopped = self._add_text(self._detokenizer.add(token_id))
            texts.append(text)
            if stopped:
                return Piece(tuple(ids[: position + 1]), "".join(texts), "stop", tuple(told))
        if finish_reason is not None:
            text, stopped = self._add_text(self._detokenizer.finish())
            texts.append(text if stopped else text + self._stop_strings.finish())
            finish_reason = "stop" if stopped else finish_reason
        return Piece(tuple(ids), "".join(texts), finish_reason, tuple(told))

    def _add_text(self, text: str) -> tuple[str, bool]:
        self._num_characters += len(text)
        return self._stop_strings.add(text, may_stop=self._num_tokens >= self._min_tokens)
