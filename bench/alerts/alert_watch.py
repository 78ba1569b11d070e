"""Which alerts fire, as a Prometheus tells, and when each of them first did and last did."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from time import monotonic

import httpx

LOOK_EVERY_S = 0.5


@dataclass(slots=True)
class AlertWatch:
    """Maintains the times of every alert that was seen to fire."""

    client: httpx.AsyncClient
    url: str
    firing: set[str] = field(default_factory=set)
    began_at: dict[str, float] = field(default_factory=dict)
    ended_at: dict[str, float] = field(default_factory=dict)

    async def look(self) -> None:
        answer = (await self.client.get(f"{self.url}/api/v1/alerts")).raise_for_status().json()
        firing = {alert["labels"]["alertname"] for alert in answer["data"]["alerts"] if alert["state"] == "firing"}
        for name in firing - self.firing:
            self.began_at.setdefault(name, monotonic())
        for name in self.firing - firing:
            self.ended_at[name] = monotonic()
        self.firing = firing

    async def wait_fired(self, names: Collection[str], timeout_s: float) -> None:
        """Until each has fired, now or before, or the time is over."""
        deadline = monotonic() + timeout_s
        while not set(names) <= self.began_at.keys() and monotonic() < deadline:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look()

    async def wait_clear(self, timeout_s: float) -> None:
        """Until none fires, or the time is over."""
        deadline = monotonic() + timeout_s
        while self.firing and monotonic() < deadline:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look()
