"""Where a JSON object ends, in a text that comes in pieces."""

from __future__ import annotations

OUTSIDE_STRINGS = frozenset('{}[]:,-+.0123456789eEtrufalsn" \t\r\n')  # what JSON has there


class JsonObjectEnd:
    """Maintains the depth of brackets and whether a string is open. It checks no more than it needs to find the end."""

    def __init__(self, depth: int = 0) -> None:
        """`depth`: of brackets that are open already."""
        self._depth = depth
        self._in_string = False
        self._is_escaped = False
        self.has_ended = False
        self.is_broken = False  # by a character that is no JSON

    def feed(self, text: str) -> int:
        """How many characters belong to the object; fewer than there are once it has ended or is broken."""
        for position, character in enumerate(text):
            if self._in_string:
                self._feed_string(character)
            elif character not in OUTSIDE_STRINGS:
                self.is_broken = True
                return position
            else:
                self._in_string = character == '"'
                self._depth += (character in "{[") - (character in "}]")
                if self._depth <= 0 and character in "}]":
                    self.has_ended = True
                    return position + 1
        return len(text)

    def _feed_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_string = False
