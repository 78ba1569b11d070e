"""One drill: under a steady load one mishap follows the other, each until its alerts fire; in the end none may.

A mishap that is over leaves the cluster as it was, so that whatever still fires at the end is a fault of the rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from time import monotonic

import httpx

from bench.alerts.alert_watch import AlertWatch
from bench.chaos.fleet import ControlledFleet, Target

STEADY_CLIENTS, FLOOD_CLIENTS = 2, 96
REQUEST_S = 60.0
FIRED_S, CLEAR_S = 900.0, 2700.0  # for the rules as they are shipped
LEAST_S = 120.0  # however short the rules' times are
AGAIN_S = 1.0

Mishap = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    alert: str
    mishap: str
    fired_s: float | None  # after the mishap began; None: never
    cleared_s: float | None  # after the mishap ended; None: never

    @property
    def is_good(self) -> bool:
        return self.fired_s is not None and self.cleared_s is not None


class Drill:
    """Maintains the load and the watch of one run."""

    def __init__(
        self, url: str, model: str, proxy_pid: int, fleet: ControlledFleet, watch: AlertWatch, speed: float
    ) -> None:
        self._url = url
        self._model = model
        self._proxy_pid = proxy_pid
        self._fleet = fleet
        self._watch = watch
        self._speed = speed
        self._num_asked = 0

    @property
    def mishaps(self) -> Mapping[str, tuple[Mishap, Sequence[str]]]:
        return {
            "more requests than two workers serve": (
                self._flood,
                ("PdserveFirstTokenSlow", "PdserveTokensSlow", "PdserveKvFull", "PdserveRequestsRefused"),
            ),
            "the prefill worker is stopped": (
                lambda: self._stopped("prefill"),
                ("PdserveTargetDown",),
            ),
            "both decode workers are stopped": (
                lambda: self._stopped("decode"),
                ("PdserveLeasesExpire", "PdserveRequestsFail"),
            ),
            "the prefill worker dies again and again": (
                self._dying,
                ("PdserveWorkersRestart", "PdserveWorkersMissing", "PdserveHandoffsFail"),
            ),
            "the proxy is stopped": (self._proxy_stopped, ("PdserveProxyDown",)),
            "a pool is resized again and again": (self._resized, ("PdserveScalingSwings",)),
        }

    async def run(self, say: Callable[[str], None]) -> list[Outcome]:
        spans: dict[str, tuple[float, float]] = {}
        async with self._load(STEADY_CLIENTS, "a prompt of some length, " * 3, 24):
            for name, (mishap, alerts) in self.mishaps.items():
                say(name)
                began_at = monotonic()
                async with mishap():
                    await self._watch.wait_fired(alerts, max(LEAST_S, FIRED_S / self._speed))
                spans[name] = (began_at, monotonic())
                say(f"  fires: {', '.join(sorted(self._watch.firing))}")
            say("all is well again")
            await self._watch.wait_clear(max(LEAST_S, CLEAR_S / self._speed))
        return [
            self._outcome(alert, name, *spans[name]) for name, (_, alerts) in self.mishaps.items() for alert in alerts
        ]

    def _outcome(self, alert: str, mishap: str, began_at: float, ended_at: float) -> Outcome:
        watch = self._watch
        fired_at, cleared_at = watch.began_at.get(alert), watch.ended_at.get(alert)
        return Outcome(
            alert,
            mishap,
            None if fired_at is None else max(0.0, fired_at - began_at),
            None if cleared_at is None or alert in watch.firing else max(0.0, cleared_at - ended_at),
        )

    @asynccontextmanager
    async def _load(self, num_clients: int, prompt: str, num_tokens: int) -> AsyncIterator[None]:
        """So many ask, one request after the other, whatever becomes of them."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=REQUEST_S, limits=limits, trust_env=False) as client:
            tasks = [asyncio.create_task(self._ask_on(client, prompt, num_tokens)) for _ in range(num_clients)]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_on(self, client: httpx.AsyncClient, prompt: str, num_tokens: int) -> None:
        while True:
            self._num_asked += 1
            new = f"{self._num_asked} {prompt}"  # no cache has it
            body = {"model": self._model, "prompt": new, "max_tokens": num_tokens, "ignore_eos": True}
            with contextlib.suppress(httpx.TransportError):
                answer = await client.post(f"{self._url}/v1/completions", json=body)
                if answer.status_code == 200:
                    continue
            await asyncio.sleep(AGAIN_S)

    def _flood(self) -> AbstractAsyncContextManager[None]:
        return self._load(FLOOD_CLIENTS, "short", 96)

    @asynccontextmanager
    async def _stopped(self, role: str) -> AsyncIterator[None]:
        await self._any(role)
        targets = [target for target in await self._fleet.ready() if target.role == role]
        for target in targets:
            os.kill(target.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for target in targets:
                with contextlib.suppress(ProcessLookupError):  # it may have been replaced meanwhile
                    os.kill(target.pid, signal.SIGCONT)

    @asynccontextmanager
    async def _proxy_stopped(self) -> AsyncIterator[None]:
        os.kill(self._proxy_pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._proxy_pid, signal.SIGCONT)

    @asynccontextmanager
    async def _dying(self) -> AsyncIterator[None]:
        async def kill_on() -> None:
            while True:
                for target in await self._fleet.ready():
                    if target.name == victim.name:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(target.pid, signal.SIGKILL)
                await asyncio.sleep(AGAIN_S)

        victim = await self._any("prefill")
        async with _beside(kill_on()):
            yield

    @asynccontextmanager
    async def _resized(self) -> AsyncIterator[None]:
        async def resize_on() -> None:
            for _ in range(5):
                for num_workers in (3, 2):
                    await self._fleet.scale("decode", num_workers)
                    await asyncio.sleep(10 / self._speed)

        async with _beside(resize_on()):
            yield

    async def _any(self, role: str) -> Target:
        """Raises TimeoutError when none is ready for long."""
        async with asyncio.timeout(LEAST_S):
            while True:
                for target in await self._fleet.ready():
                    if target.role == role:
                        return target
                await asyncio.sleep(AGAIN_S)


@asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
