"""Stop strings across token borders: nothing of a match is sent, and what turned out to be none is sent in full.

One Knuth-Morris-Pratt automaton for each string, so that the cost of a character does not depend on the text before.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Maintains the text that could still become a match, held back. The match that is complete first wins."""

    def __init__(self, stops: Sequence[str], *, included: bool = False) -> None:
        """`included`: the match is sent too, so that nothing is held back."""
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._included = included
        self._matched = [0] * len(stops)  # characters of each string that the end of the text matches
        self._held = ""

    def add(self, text: str, *, may_stop: bool = True) -> tuple[str, bool]:
        """What may be sent now, and whether a stop string is complete; then nothing more may be sent.

        Without `may_stop` a match that is complete in `text` is none.
        """
        if not self._stops:
            return text, False
        for position, character in enumerate(text):
            length = self._advance(character)
            if length and may_stop:
                whole = self._held + text[: position + 1]
                self._held = ""
                return whole if self._included else whole[: len(whole) - length], True
        whole = self._held + text
        keep = 0 if self._included else max(self._matched)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep], False

    def finish(self) -> str:
        """What was held back: the text ended, so it is no match."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """The length of the longest string that is complete with `character`, or 0."""
        complete = 0
        for i, (stop, borders) in enumerate(self._stops):
            n = self._matched[i]
            while n and stop[n] != character:
                n = borders[n - 1]
            if stop[n] == character:
                n += 1
            if n == len(stop):
                complete = max(complete, n)
                n = borders[n - 1]
            self._matched[i] = n
        return complete


def _borders(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper border."""
    borders = [0] * len(stop)
    n = 0
    for i in range(1, len(stop)):
        while n and stop[i] != stop[n]:
            n = borders[n - 1]
        if stop[i] == stop[n]:
            n += 1
        borders[i] = n
    return borders
