"""Several who may need the transport awake, each with a voice of its own."""

from __future__ import annotations

from collections.abc import Callable


class AwakeVotes:
    """Maintains: `keep_awake` was last told true exactly while one voter at least wants it. All vote on one thread."""

    def __init__(self, keep_awake: Callable[[bool], None]) -> None:
        self._keep_awake = keep_awake
        self._votes: list[bool] = []

    def voter(self) -> Callable[[bool], None]:
        """One voice, which says false so far."""
        place = len(self._votes)
        self._votes.append(False)

        def vote(awake: bool) -> None:
            before = any(self._votes)
            self._votes[place] = awake
            if any(self._votes) != before:
                self._keep_awake(awake)

        return vote
