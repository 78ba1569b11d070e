"""Reading a text that is not whole yet: what was expected is there, or more text is needed, or it is something else."""

from __future__ import annotations

import json
import re

STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
NOT_BLANK = re.compile(r"\S|\Z")
MAX_STRING = 256  # characters; a longer one that has no end yet is none


class NeedsMore(Exception):
    """Up to its end the text is what was expected."""


class Unexpected(Exception):
    pass


class Cursor:
    """A place in a text that moves over what was expected, blanks aside."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at

    def take(self, *expected: str) -> str:
        """The one of these that stands here. Raises NeedsMore, Unexpected."""
        first = first_visible(self.text, self.at)
        for word in expected:
            if self.text.startswith(word, first):
                self.at = first + len(word)
                return word
        rest = self.text[first : first + max(map(len, expected))]
        if any(word.startswith(rest) for word in expected):
            raise NeedsMore
        raise Unexpected

    def take_string(self) -> str:
        """A JSON string. Raises NeedsMore, Unexpected."""
        first = first_visible(self.text, self.at)
        found = STRING.match(self.text, first)
        if found is None:
            rest = self.text[first:]
            raise NeedsMore if rest[:1] in ("", '"') and len(rest) < MAX_STRING else Unexpected
        self.at = found.end()
        try:
            return str(json.loads(found.group()))
        except ValueError as error:
            raise Unexpected from error


def first_visible(text: str, at: int = 0) -> int:
    found = NOT_BLANK.search(text, at)
    return found.start() if found else len(text)
