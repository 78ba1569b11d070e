"""What a sampler derives from a request's generated tokens, such as counts or a grammar's state.

It is never sent or saved: wherever a request goes on, the state is begun anew and given the tokens generated so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from engine.request import Request


class DerivedState(Protocol):
    def take(self, token_id: int) -> None:
        """Takes in the next generated token."""
        ...


S = TypeVar("S", bound=DerivedState)


class DerivedStates(Generic[S]):
    """Maintains one state a live request, which has taken in exactly what `of` last saw generated."""

    def __init__(self, begin: Callable[[Request], S]) -> None:
        self._begin = begin  # the state before the first generated token
        self._states: WeakKeyDictionary[Request, tuple[S, list[int]]] = WeakKeyDictionary()  # and the tokens it took

    def of(self, request: Request) -> S:
        """The state after all of the request's generated tokens. Raises what `begin` and `take` do."""
        generated = request.token_ids[request.num_prompt :]
        known = self._states.pop(request, None)
        if known is not None and known[1] == generated[: len(known[1])]:
            state, taken = known
        else:
            state, taken = self._begin(request), []
        for token_id in generated[len(taken) :]:
            state.take(token_id)
        self._states[request] = state, generated
        return state
