"""The requests that run, by tenant and id: who asks the same again meanwhile reads along."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from proxy.errors import ApiError, ErrorCode
from proxy.request.generation import Generation
from proxy.request.generation_request import GenerationRequest
from proxy.request.reading import Reading

Key = tuple[str, str]  # tenant, request id


class Running:
    """One request, from before its admission to its end."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self._admitted: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()

    @property
    def generation(self) -> Generation | None:
        """None while it is being admitted."""
        return self._admitted.result() if self._admitted.done() and not self._admitted.exception() else None

    def admitted(self, generation: Generation) -> Reading:
        self._admitted.set_result(generation)
        return Reading(generation, generation.events)

    def refused(self, error: BaseException) -> None:
        gone = ApiError(ErrorCode.CANCELLED, "the client that asked first went away while the request was admitted")
        self._admitted.set_exception(error if isinstance(error, ApiError) else gone)
        self._admitted.exception()  # nobody need have waited for it

    async def attach(self, request: GenerationRequest) -> Reading:
        """Raises ApiError: what refused the first, or that this is not the same or comes too late."""
        if replace(request, timeout_s=None) != replace(self.request, timeout_s=None):
            raise _taken(request, "runs already with another body")
        generation = await asyncio.shield(self._admitted)
        events = generation.events.follow()
        if events is None:
            raise _taken(request, "runs already, and has said too much (max_buffered_tokens) to be read from its start")
        return Reading(generation, events)


class RunningRequests:
    """Maintains one `Running` for each key."""

    def __init__(self) -> None:
        self._running: dict[Key, Running] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._running)

    def generations(self) -> Iterator[Generation]:
        """Those that are admitted."""
        return (each.generation for each in list(self._running.values()) if each.generation is not None)

    def find(self, tenant: str, request_id: str) -> Running | None:
        return self._running.get((tenant, request_id))

    def begin(self, request: GenerationRequest) -> Running:
        """Its key is free."""
        self._idle.clear()
        running = self._running[_key(request)] = Running(request)
        return running

    def end(self, request: GenerationRequest) -> None:
        del self._running[_key(request)]
        if not self._running:
            self._idle.set()

    async def wait_idle(self) -> None:
        await self._idle.wait()


def _key(request: GenerationRequest) -> Key:
    return request.caller.tenant, request.request_id


def _taken(request: GenerationRequest, why: str) -> ApiError:
    return ApiError(
        ErrorCode.ALREADY_EXISTS, f"request_id: {request.request_id} {why}", "request_id", "duplicate_request"
    )
