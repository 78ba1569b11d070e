"""How many requests may wait, and how many prompt tokens, in all and for each tenant. Pure.

A place is taken before a request's prompt is tokenised, so that a flood is refused before it costs anything.
"""

from __future__ import annotations

from proxy.admission.shared_bound import SharedBound
from proxy.request.priority import Priority


class RoomFull(Exception):
    """No place is left; the message names the limit."""


class WaitingRoom:
    """Maintains that one tenant alone has at most the limits, with others less, and all together at most twice them.

    Batch requests get at most seven eighths of each, so a flood of them refuses no interactive one.
    """

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self.requests = SharedBound()
        self.tokens = SharedBound()
        self._max_requests = max_requests
        self._max_tokens = max_tokens

    def most_requests(self, priority: Priority) -> int:
        """That one tenant may have waiting."""
        return _share(self._max_requests, priority)

    def most_tokens(self, priority: Priority) -> int:
        return _share(self._max_tokens, priority)

    def enter(self, tenant: str, num_requests: int, priority: Priority) -> None:
        """Takes a place for each, or for none. Raises RoomFull."""
        if not self.requests.fits(tenant, num_requests, self.most_requests(priority)):
            kept = "; the other places are for interactive ones" if priority.is_batch else ""
            raise RoomFull(f"{self.requests.total} requests wait already{self._of(self.requests, tenant)}{kept}")
        self.requests.take(tenant, num_requests)

    def bring(self, tenant: str, num_tokens: int, priority: Priority) -> None:
        """The prompts of requests that have a place. Raises RoomFull, and they keep their places."""
        if not self.tokens.fits(tenant, num_tokens, self.most_tokens(priority)):
            raise RoomFull(f"{self.tokens.total} prompt tokens wait already{self._of(self.tokens, tenant)}")
        self.tokens.take(tenant, num_tokens)

    def leave(self, tenant: str, num_requests: int, num_tokens: int) -> None:
        self.requests.give_back(tenant, num_requests)
        self.tokens.give_back(tenant, num_tokens)

    def _of(self, bound: SharedBound, tenant: str) -> str:
        return f", {bound[tenant]} of them this tenant's" if bound[tenant] != bound.total else ""


def _share(limit: int, priority: Priority) -> int:
    return limit - limit // 8 if priority.is_batch else limit
