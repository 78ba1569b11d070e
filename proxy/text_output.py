"""What the client sees of a request's tokens: text without halves of characters and without stop strings.

Pure; `add` takes each accepted token once, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.detokenizer import Detokenizer
from proxy.stop_strings import StopStrings


@dataclass(frozen=True, slots=True)
class Piece:
    ids: tuple[int, ...]  # those that count: after a stop string is complete, no more do
    text: str
    finish_reason: str | None  # stop | length; None while it goes on


class TextOutput:
    def __init__(self, detokenizer: Detokenizer, stop_strings: StopStrings) -> None:
        self._detokenizer = detokenizer
        self._stop_strings = stop_strings

    def add(self, ids: Sequence[int], finish_reason: str | None) -> Piece:
        """`finish_reason` is the engine's, for the last of `ids`; a stop token itself has no text."""
        texts: list[str] = []
        for position, token_id in enumerate(ids):
            if finish_reason == "stop" and position == len(ids) - 1:
                break
            text, stopped = self._stop_strings.add(self._detokenizer.add(token_id))
            texts.append(text)
            if stopped:
                return Piece(tuple(ids[: position + 1]), "".join(texts), "stop")
        if finish_reason is not None:
            text, stopped = self._stop_strings.add(self._detokenizer.finish())
            texts.append(text if stopped else text + self._stop_strings.finish())
            finish_reason = "stop" if stopped else finish_reason
        return Piece(tuple(ids), "".join(texts), finish_reason)
