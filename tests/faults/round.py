"""One round: some hundred requests, many at once, through a small cluster with bad wires, and what came of them.

Behaves towards the workers as the proxy does: it alone numbers attempts, tries a failed hand-off once more, then has
the decode worker compute the prompt, and tells the prefill worker of what it gave up.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from engine.engine_thread import EngineThread
from engine.errors import EngineError
from engine.fake_runner import FakeRunner
from engine.request import RequestKind
from kv_transfer.config import TransferConfig
from kv_transfer.messages import FailureReason, HandoffError, Ticket
from kv_transfer.peer import Peer
from tests.faults.fault import Fault, Faults, Message
from tests.faults.small_cluster import NUM_WORKERS, Settings, SmallCluster
from tests.faults.stepped_engine import SteppedEngine
from tests.faults.virtual_time import run_in_virtual_time
from tests.faults.workers import DecodeWorker, PrefillWorker, WorkerDied, make_request
from tests.unit.kv_transfer.pair import make_engine, transfer_config

REQUEST_S = 60.0
GRACE_S = 5.0  # an answer that comes later than this after the deadline is a hang
RESTART_S = 1.0
IN_DOUBT_S = 0.2  # far below the default: else most hand-offs would be refused because a read before did not end
PREFILL_STEPS_S = (0.004, 0.7)  # of one incarnation after the other: with a slow one, leases must be renewed
DECODE_STEP_S = 0.004
LATEST_S = 45.0  # after which no message is under way any more
BASELINE_S = 300.0  # after which nothing may be left of anything
RATE = 0.06
RARE_RATE = 0.0015
MAX_ATTEMPTS = 8
MAX_HANDOFFS = 2
LENGTHS = (1, 3, 4, 5, 7, 8, 9, 13, 16, 17, 24, 33, 40)
LETTERS = range(97, 123)


@dataclass(frozen=True, slots=True)
class Plan:
    """`threads`: real engine threads and the real clock, everything 33 times as fast, and not exactly repeatable."""

    seed: str
    num_handoffs: int
    num_at_once: int = 32
    rate: float = RATE
    rare_rate: float = RARE_RATE
    threads: bool = False
    wrap: Callable[[Peer], Peer] = lambda peer: peer

    @property
    def time_scale(self) -> float:
        return 0.03 if self.threads else 1.0


@dataclass(slots=True)
class Result:
    """Maintains the tables. The three lists must stay empty."""

    faults: Faults
    outcomes: Counter[str] = field(default_factory=Counter)
    failed_attempts: Counter[str] = field(default_factory=Counter)
    wrong_texts: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    num_deaths: int = 0
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not (self.wrong_texts or self.hangs or self.left_over)

    def add(self, other: Result) -> None:
        self.faults.messages += other.faults.messages
        self.faults.hits += other.faults.hits
        self.outcomes += other.outcomes
        self.failed_attempts += other.failed_attempts
        self.wrong_texts += other.wrong_texts
        self.hangs += other.hangs
        self.left_over += other.left_over
        self.num_deaths += other.num_deaths
        self.seconds += other.seconds


def run_round(plan: Plan) -> Result:
    """Raises whatever the harness itself does wrong."""
    started_at = time.monotonic()
    work = Round(plan).run
    result = asyncio.run(work()) if plan.threads else run_in_virtual_time(work())
    result.seconds = time.monotonic() - started_at
    return result


class Round:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._scale = plan.time_scale
        self.result = Result(Faults(plan.seed, plan.rate, plan.rare_rate, plan.time_scale))

    async def run(self) -> Result:
        asyncio.get_running_loop().set_exception_handler(self._note_error)
        self._cluster = SmallCluster(self._settings(), self.result.faults)
        places = asyncio.Semaphore(self._plan.num_at_once)
        async with asyncio.TaskGroup() as group:
            for n in range(self._plan.num_handoffs):
                await places.acquire()
                group.create_task(self._serve(n)).add_done_callback(lambda _: places.release())
        await asyncio.sleep(LATEST_S * self._scale)
        await self._wait_for_baseline()
        self.result.left_over += await self._cluster.stop()
        gc.collect()  # so that an error that nobody looked at is seen now
        self.result.num_deaths = self._cluster.num_deaths
        return self.result

    async def _wait_for_baseline(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(BASELINE_S * self._scale):
                while self._cluster.left_over():  # noqa: ASYNC110  blocks have no event for this
                    await asyncio.sleep(self._scale)

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.result.left_over.append(f"{context['message']}: {context.get('exception')!r}")

    def _settings(self) -> Settings:
        def new(num_blocks: int, step_s: float) -> EngineThread:
            engine = make_engine(num_blocks=num_blocks, max_num_batched_tokens=32, preemption="recompute")
            return EngineThread(engine, tick_s=0.02) if self._plan.threads else SteppedEngine(engine, step_s)

        paces_s = itertools.cycle(PREFILL_STEPS_S)
        return Settings(
            config=scaled(
                transfer_config(staging_slots=6, max_quarantined_slots=3, in_doubt_s=IN_DOUBT_S), self._scale
            ),
            new_prefill_engine=lambda: new(40, next(paces_s)),
            new_decode_engine=lambda: new(56, DECODE_STEP_S),
            restart_s=RESTART_S * self._scale,
            wrap=self._plan.wrap,
        )

    async def _serve(self, n: int) -> None:
        """One request, to its text or its error; a wrong text and a hang are noted."""
        rng = Random(f"{self._plan.seed} request {n}")
        prompt, max_tokens = make_prompt(rng), rng.choice([1, 2, 4, 4, 8])
        deadline = asyncio.get_running_loop().time() + REQUEST_S * self._scale
        try:
            async with asyncio.timeout_at(deadline + GRACE_S):
                outcome, tokens = await self._answer(n, rng.randbytes(16), prompt, max_tokens, deadline)
        except TimeoutError:
            self.result.hangs.append(f"seed {self._plan.seed}, request {n}")
            return
        self.result.outcomes[outcome] += 1
        expected = FakeRunner.expected(prompt, max_tokens)
        if tokens is not None and tokens != expected:
            detail = f"{len(prompt)} tokens got {tokens} instead of {expected}"
            self.result.wrong_texts.append(f"seed {self._plan.seed}, request {n} ({outcome}): {detail}")

    async def _answer(
        self, n: int, session: bytes, prompt: list[int], max_tokens: int, deadline: float
    ) -> tuple[str, list[int] | None]:
        num_failed = 0
        for number in range(1, MAX_ATTEMPTS + 1):
            source = self._choose_prefill(n + number) if num_failed < MAX_HANDOFFS else None
            decode = await self._choose_decode(n + number // 2)
            ticket = Ticket(session, number)
            if source is not None:
                self._tell_prefill(source, f"{n}.{number}", prompt, max_tokens, ticket)
            request = make_request(
                f"{n}.{number}", prompt, max_tokens, RequestKind.GENERATE, awaits_kv=source is not None
            )
            try:
                tokens = await decode.generate(request, source, ticket, deadline)
                needs_kv = "valid" if max_tokens > 1 else "needed no KV"
                return ("recomputed" if source is None else needs_kv), tokens
            except WorkerDied:
                self.result.failed_attempts["D died"] += 1
            except HandoffError as error:
                self.result.failed_attempts[error.reason] += 1
                num_failed += 1
                if error.reason is FailureReason.DEADLINE:
                    return "failed: deadline", None
            if source is not None:
                self._tell(Message.ABORT, ticket, partial(source.abort, ticket))
        return "failed: too many attempts", None

    def _tell_prefill(
        self, worker: PrefillWorker, request_id: str, prompt: list[int], max_tokens: int, ticket: Ticket
    ) -> None:
        def deliver() -> Coroutine[Any, Any, None]:
            return worker.prefill(make_request(request_id, prompt, max_tokens, RequestKind.PREFILL), ticket)

        self._tell(Message.PREFILL, ticket, deliver)

    def _tell(self, message: Message, ticket: Ticket, deliver: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The proxy's own wire is no better."""
        draw = self.result.faults.draw(message, ticket.session.hex())
        delays_s: dict[Fault | None, list[float]] = {
            None: [0.0],
            Fault.LOST: [],
            Fault.LATE: [draw.delay_s],
            Fault.TWICE: [0.0, draw.delay_s],
        }
        for delay_s in delays_s[draw.fault]:
            self._cluster.in_background(self._arrive(delay_s, deliver))

    @staticmethod
    async def _arrive(delay_s: float, deliver: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await asyncio.sleep(delay_s)
        with suppress(HandoffError, EngineError):  # the decode worker sees what comes of it
            await deliver()

    def _choose_prefill(self, number: int) -> PrefillWorker:
        """Perhaps a dead one: the proxy need not know yet."""
        return self._cluster.prefill[f"P{number % NUM_WORKERS}"]

    async def _choose_decode(self, number: int) -> DecodeWorker:
        worker = self._cluster.decode[f"D{number % NUM_WORKERS}"]
        if not worker.is_dead:
            return worker
        await asyncio.sleep(1.1 * RESTART_S * self._scale)
        return self._cluster.decode[worker.name]


def make_prompt(rng: Random) -> list[int]:
    """Half of them begin as some others do, so that prefixes are found on either side."""
    length = rng.choice(LENGTHS)
    shared = Random(rng.randrange(8)).choices(LETTERS, k=length // 2) if rng.random() < 0.5 else []
    return shared + rng.choices(LETTERS, k=length - len(shared))


def scaled(config: TransferConfig, scale: float) -> TransferConfig:
    """With every duration multiplied."""
    durations = {name: value * scale for name, value in config.model_dump().items() if name.endswith("_s")}
    return TransferConfig.model_validate(config.model_dump() | durations)
