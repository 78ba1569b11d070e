"""One drill: questions are answered undisturbed, then again while workers are disturbed; in the end all must be idle.

The proxy that is asked is the drill's own, behind a `RelayedMembership`, so that links can be cut without privileges.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx

from bench.busy_gauges import BUSY, IN_DOUBT
from bench.chaos.answer import Answer, Refused, ask
from bench.chaos.fleet import Fleet
from bench.chaos.mishaps import Mishaps, Scale, Scaling
from bench.chaos.questions import KINDS, Question, make_questions
from bench.chaos.relayed_membership import RelayedMembership
from bench.chaos.verdict import Verdict
from bench.free_port import free_port
from bench.metric_sum import metric_sum

MARGIN_S = 15.0  # after a request's deadline: later is a hang
READY_S = 60.0
ASK_EVERY_S = 0.5
THREE_DEATHS = "3 workers when they died"
UNNOTICED_S = 2.0  # for so long a dead worker may still get requests
MISHAP_S, SCALING_S = 3.0, 12.0  # between two, about


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    num_requests: int
    clients_vanish: bool = False
    concurrency: int = 32
    num_questions: int = 42
    num_tokens: int = 16  # of a free answer
    request_s: float = 150.0  # a request's deadline, which the proxy keeps
    idle_s: float = 75.0  # everything is idle again, at the latest so long after the last answer
    time_scale: float = 1.0  # of mishaps
    most_mishaps: int | None = None  # None: until everything is served
    vanishing: float = 0.3  # share of the clients that go away, where they do


@dataclass(frozen=True, slots=True)
class Place:
    """What the drill's proxy is given."""

    controller: str
    model_dir: Path
    model_name: str
    log: Path


class Drill:
    """Maintains the verdict of one run."""

    def __init__(
        self, plan: Plan, fleet: Fleet, place: Place, say: Callable[[str], None], scale: Scale | None = None
    ) -> None:
        """`scale`: pools grow and shrink meanwhile."""
        self._plan = plan
        self._fleet = fleet
        self._place = place
        self._say = say
        self._scale = scale
        self._rng = Random(plan.seed)
        self._url = ""
        self._killed_at: list[float] = []
        self.verdict = Verdict(plan.num_requests)

    async def run(self) -> Verdict:
        plan, started_at = self._plan, time.monotonic()
        async with RelayedMembership(self._place.controller) as membership, self._proxy(membership.address):
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=plan.concurrency)
            timeout = httpx.Timeout(plan.request_s + MARGIN_S)
            async with httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False) as client:
                usual = dict(Counter(target.role for target in await self._fleet.ready()))
                questions = make_questions(self._place.model_name, plan.num_questions, self._rng, plan.num_tokens)
                self._say(f"{len(questions)} questions, undisturbed")
                answers = await self._undisturbed(client, questions)
                every_s = MISHAP_S * plan.time_scale
                rng = Random(f"{plan.seed} mishaps")
                mishaps = Mishaps(self._fleet, membership, rng, every_s, plan.time_scale, plan.most_mishaps)
                self._killed_at = mishaps.killed_at
                scaling = Scaling(self._scale, usual, Random(f"{plan.seed} scaling"), SCALING_S * plan.time_scale)
                served = asyncio.Event()
                async with asyncio.TaskGroup() as group:
                    group.create_task(mishaps.run(served))
                    group.create_task(scaling.run(served))
                    await self._ask_all(client, questions, answers)
                    served.set()
                self.verdict.mishaps, self.verdict.num_scalings = mishaps.count, scaling.num_changes
                self._say("all requests have ended")
                await self._check_idle(client, usual)
                await self._read_proxy(client)
        self.verdict.seconds = time.monotonic() - started_at
        return self.verdict

    async def _undisturbed(self, client: httpx.AsyncClient, questions: list[Question]) -> list[Answer]:
        """Whole and streamed must agree already. One of each kind goes first, so that its grammar is compiled."""
        for question in questions[: len(KINDS)]:
            await ask(client, self._url, question, streams=False)
        gate = asyncio.Semaphore(self._plan.concurrency // 4)

        async def one(question: Question) -> Answer:
            async with gate:
                answer = await ask(client, self._url, question, streams=False)
                streamed = await ask(client, self._url, question, streams=True)
            if streamed != answer:
                self.verdict.wrong.append(f"undisturbed, streamed {streamed}, whole {answer}")
            return answer

        return list(await asyncio.gather(*(one(question) for question in questions)))

    async def _ask_all(self, client: httpx.AsyncClient, questions: list[Question], answers: list[Answer]) -> None:
        numbers = iter(range(self._plan.num_requests))

        async def clients() -> None:
            for number in numbers:
                chosen = Random(f"{self._plan.seed} request {number}")
                index = chosen.randrange(len(questions))
                await self._one(client, number, questions[index], answers[index], chosen)
                if (number + 1) % 100 == 0:
                    self._say(f"request {number + 1} of {self._plan.num_requests}")

        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.concurrency):
                group.create_task(clients())

    async def _one(
        self, client: httpx.AsyncClient, number: int, question: Question, expected: Answer, chosen: Random
    ) -> None:
        loop = asyncio.get_running_loop()
        started_at, streams = loop.time(), chosen.random() < 0.5
        vanishes = self._plan.clients_vanish and chosen.random() < self._plan.vanishing
        patience_s = chosen.uniform(0.0, 4.0) if vanishes else self._plan.request_s + MARGIN_S
        name = f"request {number}, {dict(question.body)}, streams={streams}"
        try:
            async with asyncio.timeout(patience_s):
                answer = await ask(client, self._url, question, streams=streams)
        except TimeoutError:
            if vanishes:
                self.verdict.vanished += 1
            else:
                self.verdict.hangs.append(name)
        except (Refused, httpx.TransportError) as error:
            self._take_failure(f"{name}: {type(error).__name__} {error}", started_at)
        else:
            self.verdict.longest_s = max(self.verdict.longest_s, loop.time() - started_at)
            if answer == expected:
                self.verdict.answered += 1
            else:
                self.verdict.wrong.append(f"{name}: {answer}, undisturbed {expected}")

    def _take_failure(self, failure: str, started_at: float) -> None:
        """Only who says that it met three deaths, and can have met three, may fail."""
        num_deaths = sum(at >= started_at - UNNOTICED_S for at in self._killed_at)
        if THREE_DEATHS in failure and num_deaths >= 3:
            self.verdict.at_three_deaths += 1
        else:
            self.verdict.failed.append(failure)

    async def _check_idle(self, client: httpx.AsyncClient, usual: dict[str, int]) -> None:
        """Waits for the usual workers to be there with nothing left on them."""
        left: list[str] = []
        deadline = time.monotonic() + self._plan.idle_s
        while time.monotonic() < deadline:
            left = await self._left_over(client, usual)
            if not left:
                return
            await asyncio.sleep(ASK_EVERY_S)
        self.verdict.leaks += left

    async def _left_over(self, client: httpx.AsyncClient, usual: dict[str, int]) -> list[str]:
        targets = await self._fleet.ready()
        here = Counter(target.role for target in targets)
        left = [f"{here[role]} of {n} {role} workers are ready" for role, n in usual.items() if here[role] != n]
        for target in targets:
            try:
                text = (await client.get(f"http://{target.metrics_address}/metrics", timeout=10)).text
            except httpx.TransportError as error:
                left.append(f"{target.name}: its metrics cannot be read: {error}")
                continue
            for name, labels in (*BUSY, IN_DOUBT):
                if value := metric_sum(text, name, labels):
                    left.append(f"{target.name}: {name} {labels or ''} is {value:g}")
        in_flight = metric_sum(
            (await client.get(f"{self._url}/metrics", timeout=10)).text, "pdserve_requests_in_flight", {}
        )
        return [*left, f"proxy: {in_flight:g} requests in flight"] if in_flight else left

    async def _read_proxy(self, client: httpx.AsyncClient) -> None:
        text = (await client.get(f"{self._url}/metrics", timeout=10)).text
        for stage in ("prefill", "transfer", "decode"):
            self.verdict.retries[stage] = metric_sum(text, "pdserve_retries_total", {"stage": stage})
        self.verdict.migrations = metric_sum(text, "pdserve_migrations_total", {})

    @asynccontextmanager
    async def _proxy(self, controller: str) -> AsyncIterator[None]:
        place, http_port, grpc_port = self._place, free_port(), free_port()
        self._url = f"http://127.0.0.1:{http_port}"
        arguments = [
            f"--controller={controller}", f"--model-dir={place.model_dir}", f"--model-name={place.model_name}",
            f"--http-port={http_port}", f"--grpc-port={grpc_port}", f"--request-timeout-s={self._plan.request_s:g}",
        ]  # fmt: skip
        with place.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(sys.executable, "-m", "proxy", *arguments, stderr=log)
            try:
                await self._wait_ready(process)
                yield
            finally:
                if process.returncode is None:
                    process.terminate()
                await process.wait()

    async def _wait_ready(self, process: asyncio.subprocess.Process) -> None:
        async with asyncio.timeout(READY_S), httpx.AsyncClient(trust_env=False) as client:
            while process.returncode is None:
                try:
                    if (await client.get(f"{self._url}/ready")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(ASK_EVERY_S / 5)
        raise RuntimeError(f"the drill's proxy ended:\n{self._place.log.read_text()[-2000:]}")
