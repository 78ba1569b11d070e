"""One streamed completion over HTTP, and when each of its tokens came."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Stream:
    """Times are seconds on `perf_counter`; `error` is set instead of them when the request failed."""

    sent_at: float
    token_times: Sequence[float] = ()
    num_tokens: int = 0
    error: str = ""

    @property
    def time_to_first_token_s(self) -> float:
        return self.token_times[0] - self.sent_at

    @property
    def time_per_output_token_s(self) -> float:
        """0 for a single token."""
        return (self.token_times[-1] - self.token_times[0]) / max(self.num_tokens - 1, 1)

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """For each token after the first: when it came, and how long after the one before."""
        return [(later, later - earlier) for earlier, later in pairwise(self.token_times)]


async def complete(
    client: httpx.AsyncClient, url: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> Stream:
    """`body` of `/v1/completions`, without `stream`."""
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    sent_at = perf_counter()
    token_times: list[float] = []
    num_tokens = 0
    async with client.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as response:
        if response.status_code != 200:
            return Stream(sent_at, error=f"{response.status_code} {(await response.aread())[:200]!r}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return Stream(sent_at, error=str(event["error"]))
            if event.get("usage"):
                num_tokens = event["usage"]["completion_tokens"]
            if event["choices"]:
                token_times.append(perf_counter())
    return Stream(sent_at, token_times, num_tokens)
