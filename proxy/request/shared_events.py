"""A request's events for all who read it: each gets the whole stream from its start, at its own pace.

What was said is kept up to the limit of one reader's buffer; past it nobody new can read along.
"""

from __future__ import annotations

from proxy.errors import ApiError, ErrorCode
from proxy.request.event_buffer import Event, EventBuffer, SlowClient, TokenEvent


class SharedEvents(EventBuffer):
    """Maintains what was said and who follows; itself it is the buffer of the first reader."""

    def __init__(self, max_tokens: int, num_choices: int = 1) -> None:
        super().__init__(max_tokens, num_choices)
        self._num_choices = num_choices
        self._said: list[Event] | None = []  # None: too much
        self._num_said = 0  # tokens
        self._is_read = True  # by the first reader
        self._followers: list[EventBuffer] = []

    def push(self, event: Event) -> None:
        """Raises SlowClient, without taking the event, when the only reader is too slow; others end alone."""
        for follower in list(self._followers):
            self._push_to(follower, event)
        if self._is_read:
            self._push_to_first(event)
        elif not self._followers:
            raise SlowClient
        self._remember(event)

    def fail(self, error: ApiError, *, drop: bool = False) -> None:
        super().fail(error, drop=drop)
        for follower in self._followers:
            follower.fail(error, drop=drop)

    def follow(self) -> EventBuffer | None:
        """For another reader, from the start; None when that is not kept any more."""
        if self._said is None:
            return None
        follower = EventBuffer(self.max_tokens, self._num_choices)
        for event in self._said:
            follower.push(event)
        if self._error is not None:
            follower.fail(self._error)
        self._followers.append(follower)
        return follower

    def leave(self, reader: EventBuffer) -> bool:
        """Whether somebody else still reads."""
        if reader is self:
            self._is_read = False
            self._events.clear()
        elif reader in self._followers:
            self._followers.remove(reader)
        return self._is_read or bool(self._followers)

    def _push_to(self, follower: EventBuffer, event: Event) -> None:
        try:
            follower.push(event)
        except SlowClient:
            follower.fail(_too_slow(self.max_tokens), drop=True)
            self._followers.remove(follower)

    def _push_to_first(self, event: Event) -> None:
        try:
            super().push(event)
        except SlowClient:
            if not self._followers:
                raise
            super().fail(_too_slow(self.max_tokens), drop=True)
            self._is_read = False

    def _remember(self, event: Event) -> None:
        if isinstance(event, TokenEvent):
            self._num_said += len(event.ids)
        if self._said is not None:
            self._said.append(event)
        if self._num_said > self.max_tokens:
            self._said = None


def _too_slow(limit: int) -> ApiError:
    return ApiError(
        ErrorCode.CANCELLED,
        f"the client reads too slowly: over {limit} tokens (max_buffered_tokens) were waiting for it",
    )
