"""An open load: each request is sent when it is due, whatever became of those before; what its client saw is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from bench.open_stream import over_grpc
from bench.scaling.arrivals import Arrival


@dataclass(frozen=True, slots=True)
class Seen:
    """One request's answer. `error` is set instead of the times when it failed."""

    at_s: float
    phase: str
    first_s: float = 0.0
    per_token_s: float | None = None  # None of an answer with one token
    error: str = ""


class Crowd:
    """Maintains what was seen, in the order in which requests ended."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.seen: list[Seen] = []
        self._channel = channel

    async def run(self, arrivals: Iterable[Arrival]) -> None:
        """Until every request has ended."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for arrival in arrivals:
                await asyncio.sleep(started_at + arrival.at_s - loop.time())
                tasks.create_task(self._ask(arrival))

    async def _ask(self, arrival: Arrival) -> None:
        try:
            answer = await over_grpc(self._channel, arrival.prompt, arrival.max_tokens)
        except grpc.aio.AioRpcError as error:
            text = f"{error.code().name}: {error.details()}"
            self.seen.append(Seen(arrival.at_s, arrival.phase, error=text))
            return
        if not answer.token_at:
            self.seen.append(Seen(arrival.at_s, arrival.phase, error="an answer without a token"))
            return
        per_token_s = answer.per_token_s if len(answer.token_at) > 1 else None
        self.seen.append(Seen(arrival.at_s, arrival.phase, answer.first_s, per_token_s))
