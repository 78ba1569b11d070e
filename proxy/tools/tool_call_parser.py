"""Calls of functions in a model's text, found while it is generated.

What comes out joined is the text without its calls, and the calls: nothing of a call's markup is in the text. What only
looks like a call stays text, in full.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass

from proxy.text.json_object_end import JsonObjectEnd
from proxy.text.text_cursor import Cursor, NeedsMore, Unexpected, first_visible
from proxy.tools.tool_call_format import ToolCallFormat

ARGUMENTS_KEYS = ('"arguments"', '"parameters"')  # each format knows one of them, models mix them up


@dataclass(frozen=True, slots=True)
class ContentPiece:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    index: int
    text: str


Piece = ContentPiece | CallBegin | ArgumentsPiece


def new_call_id(length: int) -> str:
    """Letters and digits, after OpenAI's prefix where there is room for it."""
    digits = secrets.token_hex(length)[:length]
    return f"call_{digits}" if length > 9 else digits


class ToolCallParser:
    """Maintains the text that may belong to a call and is not told yet, and what is expected next."""

    def __init__(
        self,
        form: ToolCallFormat,
        names: Collection[str],
        *,
        is_forced: bool = False,
        new_id: Callable[[int], str] = new_call_id,
    ) -> None:
        """`names`: of the functions that may be called; a call of any other is text. `is_forced`: all text is calls."""
        self._form = form
        self._names = names
        self._is_forced = is_forced
        self._new_id = new_id
        self._text = ""
        self._json_at = 0  # in `_text`, where a call's JSON would begin; what stands before is its opening
        self._step = self._read_text if form.opening else self._read_start
        self._end = JsonObjectEnd()
        self._num_calls = 0
        self._pieces: list[Piece] = []

    def add(self, text: str) -> list[Piece]:
        """What became certain with this text."""
        self._text += text
        while self._text and self._step():
            continue
        return self._take_pieces()

    def finish(self, reason: str) -> tuple[list[Piece], str]:
        """What was held back, and the reason for clients: `tool_calls` where the text ended by itself after calls."""
        if not self._holds_markup(is_cut=reason == "length"):
            self._tell(self._text)
        self._text = ""
        is_whole = self._num_calls > 0 and self._step not in (self._read_arguments, self._read_broken)
        return self._take_pieces(), "tool_calls" if is_whole and reason == "stop" else reason

    def _holds_markup(self, *, is_cut: bool) -> bool:
        """Whether what is held back belongs to a call, now that no more text comes."""
        if is_cut and (self._is_forced or self._step in (self._read_call, self._read_block)):
            return True
        return self._num_calls > 0 and (self._step == self._read_after or self._text.isspace())

    def _take_pieces(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    # What is expected next: each takes it from the front of `_text`, and returns False when it needs more of it.

    def _read_start(self) -> bool:
        """Of a format without an opening: a text that begins with a brace is a call."""
        first = first_visible(self._text)
        if first == len(self._text):
            return False
        self._json_at = first
        self._step = self._read_call if self._text[first] == "{" else self._read_plain
        return True

    def _read_plain(self) -> bool:
        self._tell(self._text)
        self._text = ""
        return False

    def _read_text(self) -> bool:
        """Up to an opening. The blanks before it are markup."""
        opening = self._form.opening
        found = self._text.find(opening)
        end = found if found >= 0 else len(self._text) - _num_begun(self._text, opening)
        end = len(self._text[:end].rstrip())
        self._tell(self._text[:end])
        self._text = self._text[end:]
        if found < 0:
            return False
        self._json_at = found - end + len(opening)
        self._step = self._read_call
        return True

    def _read_call(self) -> bool:
        """Up to its arguments; from there on it is certain, and they are told as they come."""
        try:
            name, arguments_at = self._read_header(Cursor(self._text, self._json_at))
        except NeedsMore:
            return False
        except Unexpected:
            self._step = self._read_block if self._form.any_order else self._read_no_call
            return True
        self._begin(name)
        self._text = self._text[arguments_at:]
        self._end = JsonObjectEnd()
        self._step = self._read_arguments
        return True

    def _read_header(self, cursor: Cursor) -> tuple[str, int]:
        if self._form.list_opening and self._json_at:
            cursor.take(self._form.list_opening)
        cursor.take("{")
        cursor.take('"name"')
        cursor.take(":")
        name = cursor.take_string()
        if name not in self._names:
            raise Unexpected
        cursor.take(",")
        cursor.take(*ARGUMENTS_KEYS)
        cursor.take(":")
        cursor.take("{")
        return name, cursor.at - 1

    def _read_block(self) -> bool:
        """A call whose keys have another order, or none: it is told when it is whole."""
        end = self._text.find(self._form.closing, self._json_at)
        inside = self._text[self._json_at : end if end >= 0 else None].lstrip()
        if not '{"'.startswith(inside[:1] + inside[1:].lstrip()[:1]):
            self._step = self._read_no_call
            return True
        if end < 0:
            return False
        call = _whole_call(inside, self._names)
        if call is None:
            self._step = self._read_no_call
            return True
        name, arguments = call
        self._begin(name)
        self._text = arguments + self._text[end:]
        self._tell_arguments(len(arguments))
        self._step = self._read_after
        return True

    def _read_no_call(self) -> bool:
        """Its opening is text, and what follows may be a call."""
        self._tell(self._text[: self._json_at])
        self._text = self._text[self._json_at :]
        self._step = self._read_text if self._form.opening else self._read_plain
        return True

    def _read_arguments(self) -> bool:
        self._tell_arguments(self._end.feed(self._text))
        if self._end.is_broken:
            self._step = self._read_broken
        elif self._end.has_ended:
            self._end = JsonObjectEnd(depth=1)
            self._step = self._read_rest
        return True

    def _read_broken(self) -> bool:
        """Arguments that are no JSON go to the client as they are, up to the closing: it has to check them anyway."""
        closing = self._form.closing
        found = self._text.find(closing) if closing else -1
        self._tell_arguments(found if found >= 0 else len(self._text) - _num_begun(self._text, closing))
        if found < 0:
            return False
        self._step = self._read_after
        return True

    def _read_rest(self) -> bool:
        """Up to the brace that ends the call's JSON: there may be an id."""
        self._text = self._text[self._end.feed(self._text) :]
        if self._end.has_ended or self._end.is_broken:
            self._step = self._read_after
        return True

    def _read_after(self) -> bool:
        """A call is over: another may follow, or the closing."""
        cursor = Cursor(self._text, 0)
        try:
            found = cursor.take(*(mark for mark in (self._form.separator, self._form.closing) if mark))
        except NeedsMore:
            return False
        except Unexpected:
            found = ""
        self._text = self._text[cursor.at :]
        self._json_at = 0
        if found and found == self._form.separator:
            self._step = self._read_call
        else:
            self._step = self._read_text if self._form.opening else self._read_plain
        return True

    def _begin(self, name: str) -> None:
        self._pieces.append(CallBegin(self._num_calls, self._new_id(self._form.id_length), name))
        self._num_calls += 1

    def _tell_arguments(self, length: int) -> None:
        """That many characters from the front of `_text`."""
        if length:
            self._pieces.append(ArgumentsPiece(self._num_calls - 1, self._text[:length]))
        self._text = self._text[length:]

    def _tell(self, text: str) -> None:
        if text:
            self._pieces.append(ContentPiece(text))


def _num_begun(text: str, opening: str) -> int:
    """How many characters at the end of the text could begin an opening."""
    return next((n for n in range(min(len(opening) - 1, len(text)), 0, -1) if text.endswith(opening[:n])), 0)


def _whole_call(text: str, names: Collection[str]) -> tuple[str, str] | None:
    """The function's name and its arguments as JSON."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters", {}))
    if name not in names or not isinstance(arguments, dict):
        return None
    return name, json.dumps(arguments)  # in ASCII: an escape may stand for half a character
