"""What a request says to its client: pieces of text, then how each choice ended; held for the client up to a limit.

One side pushes and never waits; the other iterates.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from proxy.errors import ApiError
from proxy.request.kv_mode import KvMode
from proxy.request.logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class TokenEvent:
    index: int  # of the first id, counted from the first generated token
    ids: tuple[int, ...]
    text: str  # may be empty while a character or a stop string is incomplete
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each id, where they were asked for
    choice: int = 0  # of the answer, counted from 0


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # prompt tokens that no worker had to compute for this request


@dataclass(frozen=True, slots=True)
class Timings:
    queue_s: float
    time_to_first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Route:
    """Who served a request."""

    path: KvMode
    decode_worker: str | None  # None: not chosen yet
    prefill_worker: str | None


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    reason: str  # stop | length
    usage: Usage  # of this choice
    timings: Timings
    route: Route
    choice: int = 0


Event = TokenEvent | FinishedEvent


class SlowClient(Exception):
    """More tokens wait than the limit allows."""


class EventBuffer:
    """Maintains the events that the client has not taken yet, of all choices in the order they came.

    After the last choice's FinishedEvent, or the first error, nothing is added.
    """

    def __init__(self, max_tokens: int, num_choices: int = 1) -> None:
        self.max_tokens = max_tokens
        self._num_running = num_choices
        self._events: deque[Event] = deque()
        self._num_tokens = 0
        self._error: ApiError | None = None
        self._wake = asyncio.Event()

    def push(self, event: Event) -> None:
        """Raises SlowClient, without taking the event, when the limit is passed."""
        if isinstance(event, TokenEvent):
            if self._num_tokens + len(event.ids) > self.max_tokens:
                raise SlowClient
            self._num_tokens += len(event.ids)
        else:
            self._num_running -= 1
        self._events.append(event)
        self._wake.set()

    def fail(self, error: ApiError, *, drop: bool = False) -> None:
        """The client gets what waits (unless it is dropped), then the error; of several errors the first."""
        if drop:
            self._events.clear()
        self._error = self._error or error
        self._wake.set()

    def __aiter__(self) -> EventBuffer:
        return self

    async def __anext__(self) -> Event:
        """Raises ApiError when the request failed."""
        while not self._events:
            if self._error is not None:
                raise self._error
            if not self._num_running:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        event = self._events.popleft()
        if isinstance(event, TokenEvent):
            self._num_tokens -= len(event.ids)
        return event
