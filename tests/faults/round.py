"""One round: some hundred requests, many at once, through a small cluster with bad lines, and what came of them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from engine.engine_thread import EngineThread
from engine.fake_runner import FakeModel, FakeRunner
from engine.kv_cache import KVCache
from kv_transfer.config import TransferConfig
from tests.faults.faulty_two_sided import TwoSidedKind
from tests.faults.plan import Kind, Plan, Result
from tests.faults.proxy import Asked, Proxy
from tests.faults.small_cluster import Settings, SmallCluster
from tests.faults.stepped_engine import SteppedEngine
from tests.faults.strands import Strands
from tests.faults.virtual_time import run_in_virtual_time
from tests.unit.kv_transfer.pair import BLOCK_SIZE, make_engine, transfer_config

REQUEST_S = 60.0
GRACE_S = 5.0  # an answer that comes later than this after the deadline is a hang
RESTART_S = 1.0
IN_DOUBT_S = 0.2  # far below the default: else most hand-offs would be refused because a read before did not end
AVOID_S = 0.1  # likewise: else a pool node would be avoided most of the time
THREADED_POOL = {"pool_lookup_timeout_s": 0.2, "pool_read_timeout_s": 0.4, "pool_offer_timeout_s": 0.8}  # for threads
PREFILL_STEPS_S = (0.004, 0.7)  # of one incarnation after the other: with a slow one, leases must be renewed
DECODE_STEP_S = 0.004
POOLED_PROMPTS = 100  # some are asked for again and again; together they have far more blocks than the pool
LATEST_S = 45.0  # after which no message is under way any more
BASELINE_S = 300.0  # after which nothing may be left of anything
LENGTHS = (1, 3, 4, 5, 7, 8, 9, 13, 16, 17, 24, 33, 40)
POOLED_LENGTHS = (3, 8, 9, 17, 24, 33, 40)
LETTERS = range(97, 123)


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
        self.result = Result(plan.faults())

    async def run(self) -> Result:
        asyncio.get_running_loop().set_exception_handler(self._note_error)
        with self._strands() as strands:
            self._cluster = SmallCluster(self._settings(strands), self.result.faults)
            self._proxy = Proxy(self._cluster, self.result, self._scale, RESTART_S * self._scale)
            await self._serve_all()
            await asyncio.sleep(LATEST_S * self._scale)
            await self._wait_for_baseline()
            self.result.left_over += await self._cluster.stop()
            if strands is not None and strands.alive:
                self.result.left_over.append(f"{len(strands.alive)} threads of transports did not end")
        gc.collect()  # so that an error that nobody looked at is seen now
        self.result.num_deaths = self._cluster.num_deaths
        return self.result

    async def _serve_all(self) -> None:
        places = asyncio.Semaphore(self._plan.num_at_once)
        async with asyncio.TaskGroup() as group:
            for n in range(self._plan.num_handoffs):
                await places.acquire()
                group.create_task(self._serve(n)).add_done_callback(lambda _: places.release())

    async def _wait_for_baseline(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(BASELINE_S * self._scale):
                while self._cluster.left_over():  # noqa: ASYNC110  blocks have no event for this
                    await asyncio.sleep(self._scale)

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.result.left_over.append(f"{context['message']}: {context.get('exception')!r}")

    @contextmanager
    def _strands(self) -> Iterator[Strands | None]:
        if self._plan.threads or self._plan.kind is not Kind.TWO_SIDED:
            yield None
            return
        strands = Strands(asyncio.get_running_loop())
        with strands.in_place_of_threads():
            yield strands

    def _settings(self, strands: Strands | None) -> Settings:
        def new(num_blocks: int, step_s: float) -> EngineThread:
            engine = make_engine(num_blocks=num_blocks, max_num_batched_tokens=32, preemption="recompute")
            return EngineThread(engine, tick_s=0.02) if self._plan.threads else SteppedEngine(engine, step_s)

        paces_s = itertools.cycle(PREFILL_STEPS_S)
        kind = self._plan.kind
        config = transfer_config(staging_slots=6, max_quarantined_slots=3, in_doubt_s=IN_DOUBT_S, pool_avoid_s=AVOID_S)
        config = scaled(config, self._scale)
        if self._plan.threads:
            config = config.model_copy(update=THREADED_POOL)
        return Settings(
            config=config,
            new_prefill_engine=lambda: new(40, next(paces_s)),
            new_decode_engine=lambda: new(56, DECODE_STEP_S),
            restart_s=RESTART_S * self._scale,
            fingerprint=FakeModel().info().fingerprint,
            two_sided=TwoSidedKind.of(self.result.faults, config, strands) if kind is Kind.TWO_SIDED else None,
            new_arena=self._new_arena if kind is Kind.POOLED else None,
            wrap=self._plan.wrap,
            wrap_node=self._plan.wrap_node,
            wrap_offering=self._plan.wrap_offering,
        )

    async def _serve(self, n: int) -> None:
        """One request, to its text or its error; a wrong text and a hang are noted."""
        rng = Random(f"{self._plan.seed} request {n}")
        prompt, max_tokens = self._make_prompt(rng), rng.choice([1, 2, 4, 4, 8])
        deadline = asyncio.get_running_loop().time() + REQUEST_S * self._scale
        asked = Asked(n, rng.randbytes(16), prompt, max_tokens, deadline)
        answer = self._proxy.go_by_pool if self._plan.kind is Kind.POOLED else self._proxy.hand_off
        try:
            async with asyncio.timeout_at(deadline + GRACE_S):
                outcome, tokens = await answer(asked)
        except TimeoutError:
            self.result.hangs.append(f"seed {self._plan.seed}, request {n}")
            return
        self.result.outcomes[outcome] += 1
        expected = FakeRunner.expected(prompt, max_tokens)
        if tokens is not None and tokens != expected:
            detail = f"{len(prompt)} tokens got {tokens} instead of {expected}"
            self.result.wrong_texts.append(f"seed {self._plan.seed}, request {n} ({outcome}): {detail}")

    def _new_arena(self) -> KVCache:
        return KVCache(FakeModel().layout(BLOCK_SIZE), self._plan.node_blocks)

    def _make_prompt(self, rng: Random) -> list[int]:
        if self._plan.kind is Kind.POOLED:
            rng = Random(f"{self._plan.seed} prompt {rng.randrange(POOLED_PROMPTS)}")
            return make_prompt(rng, POOLED_LENGTHS)
        return make_prompt(rng, LENGTHS)


def make_prompt(rng: Random, lengths: Sequence[int]) -> list[int]:
    """Half of them begin as some others do, so that prefixes are found on either side."""
    length = rng.choice(lengths)
    shared = Random(rng.randrange(8)).choices(LETTERS, k=length // 2) if rng.random() < 0.5 else []
    return shared + rng.choices(LETTERS, k=length - len(shared))


def scaled(config: TransferConfig, scale: float) -> TransferConfig:
    """With every duration multiplied."""
    durations = {name: value * scale for name, value in config.model_dump().items() if name.endswith("_s")}
    return TransferConfig.model_validate(config.model_dump() | durations)
