"""Questions are asked over and over while all workers are replaced: each must be answered as it was undisturbed.

The same seed gives the same questions, in the same order; how many are asked depends on how long the change takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

import httpx

from bench.chaos.answer import Answer, Refused, ask
from bench.chaos.fleet import Fleet
from bench.chaos.questions import Question, make_questions
from bench.metric_sum import metric_sum


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    concurrency: int = 16
    num_questions: int = 14
    num_tokens: int = 150  # of a free answer
    request_s: float = 120.0  # an answer that takes longer hangs


@dataclass(slots=True)
class Outcome:
    """Maintains what came of each request."""

    num_right: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    stayed: list[str] = field(default_factory=list)  # workers that were not replaced
    replaced: list[tuple[str, float]] = field(default_factory=list)  # who, and seconds after the begin
    num_migrations: float = 0.0
    longest_s: float = 0.0  # of an answer
    seconds: float = 0.0

    @property
    def faults(self) -> Iterator[str]:
        for kind, faults in (("wrong", self.wrong), ("failed", self.failed), ("not replaced", self.stayed)):
            yield from (f"{kind}: {fault}" for fault in faults)
        if not self.num_right:
            yield "no request was answered, so that it proves nothing"

    def rows(self) -> list[tuple[str, str]]:
        """For a table: what, how many."""
        return [
            ("requests", f"{self.num_right + len(self.wrong) + len(self.failed)}"),
            ("answered as undisturbed", f"{self.num_right}"),
            ("wrong texts", f"{len(self.wrong)}"),
            ("failed requests", f"{len(self.failed)}"),
            ("workers replaced", f"{len(self.replaced)}"),
            *((f"{worker} was replaced after", f"{seconds:.0f} s") for worker, seconds in self.replaced),
            ("went on from a token on another worker", f"{self.num_migrations:g}"),
            ("longest answer", f"{self.longest_s:.1f} s"),
            ("all", f"{self.seconds:.0f} s"),
        ]


class RollingDrill:
    """Maintains the outcome of one run over a proxy's HTTP endpoint."""

    def __init__(self, plan: Plan, client: httpx.AsyncClient, url: str, model: str, fleet: Fleet) -> None:
        self.outcome = Outcome()
        self._plan = plan
        self._client = client
        self._url = url
        self._fleet = fleet
        self._questions = make_questions(model, plan.num_questions, Random(plan.seed), plan.num_tokens)
        self._over = False

    async def run(self, replace: Callable[[Callable[[str], None]], Awaitable[None]]) -> Outcome:
        """`replace` calls with each worker that is replaced, in this event loop. What it raises comes out of here."""
        loop, before = asyncio.get_running_loop(), {target.incarnation for target in await self._fleet.ready()}
        answers = await asyncio.gather(*(self._undisturbed(question) for question in self._questions))
        started_at, numbers = loop.time(), count()
        clients = asyncio.gather(*(self._ask(numbers, answers) for _ in range(self._plan.concurrency)))
        try:
            await replace(lambda worker: self.outcome.replaced.append((worker, loop.time() - started_at)))
        finally:
            self._over = True
            await clients
        self.outcome.seconds = loop.time() - started_at
        after = await self._fleet.ready()
        self.outcome.stayed += [target.name for target in after if target.incarnation in before]
        if not 0 < len(before) == len(after):
            self.outcome.stayed.append(f"{len(before)} workers were ready before, {len(after)} after")
        text = (await self._client.get(f"{self._url}/metrics")).text
        self.outcome.num_migrations = metric_sum(text, "pdserve_migrations_total", {})
        return self.outcome

    async def _undisturbed(self, question: Question) -> Answer:
        return await ask(self._client, self._url, question, streams=False)

    async def _ask(self, numbers: Iterator[int], answers: Sequence[Answer]) -> None:
        """One client, that asks until all is over."""
        for number in numbers:
            chosen = Random(f"{self._plan.seed} request {number}")
            index = chosen.randrange(len(answers))
            await self._one(number, self._questions[index], answers[index], streams=chosen.random() < 0.5)
            if self._over:
                return

    async def _one(self, number: int, question: Question, expected: Answer, *, streams: bool) -> None:
        loop = asyncio.get_running_loop()
        started_at, name = loop.time(), f"request {number}, {dict(question.body)}, streams={streams}"
        try:
            async with asyncio.timeout(self._plan.request_s):
                answer = await ask(self._client, self._url, question, streams=streams)
        except (Refused, httpx.TransportError, TimeoutError) as error:
            self.outcome.failed.append(f"{name}: {type(error).__name__} {error}")
            return
        self.outcome.longest_s = max(self.outcome.longest_s, loop.time() - started_at)
        if answer == expected:
            self.outcome.num_right += 1
        else:
            self.outcome.wrong.append(f"{name}: {answer}, undisturbed {expected}")
