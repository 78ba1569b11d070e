"""What the proxy does with one request, whichever way its KV goes: it alone numbers attempts, and tries again.

A hand-off that failed is tried once more, then the decode worker computes the prompt; the prefill worker is told of
what was given up. A pooled prompt is first put into the pool, and then read from there by whom it meets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.errors import EngineError
from engine.request import RequestKind
from kv_transfer.messages import FailureReason, HandoffError, Ticket
from tests.faults.decode_worker import DecodeWorker
from tests.faults.fault import Fault, Message
from tests.faults.mortal import WorkerDied, make_request
from tests.faults.plan import Result
from tests.faults.prefill_worker import PrefillWorker
from tests.faults.small_cluster import NUM_WORKERS, SmallCluster

MAX_ATTEMPTS = 8
MAX_HANDOFFS = 2
POOLED_PREFILL_S = 20.0  # then the decode worker computes what is not in the pool
WRITE_BACK_EVERY = 3  # requests


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    number: int
    session: bytes
    prompt: list[int]
    max_tokens: int
    deadline: float


class Proxy:
    """Maintains nothing of its own: failed attempts are counted in `result`."""

    def __init__(self, cluster: SmallCluster, result: Result, time_scale: float, restart_s: float) -> None:
        self._cluster = cluster
        self._result = result
        self._scale = time_scale
        self._restart_s = restart_s

    async def hand_off(self, asked: Asked) -> tuple[str, list[int] | None]:
        """What came of it, and the text unless that was an error."""
        num_failed = 0
        for number in range(1, MAX_ATTEMPTS + 1):
            source = self._choose_prefill(asked.number + number) if num_failed < MAX_HANDOFFS else None
            decode = await self._choose_decode(asked.number + number // 2)
            ticket, request_id = Ticket(asked.session, number), f"{asked.number}.{number}"
            if source is not None:
                self._tell_prefill(source, request_id, asked, ticket)
            request = make_request(
                request_id, asked.prompt, asked.max_tokens, RequestKind.GENERATE, awaits_kv=source is not None
            )
            try:
                tokens = await decode.generate(request, source, ticket, asked.deadline)
                needs_kv = "valid" if asked.max_tokens > 1 else "needed no KV"
                return ("recomputed" if source is None else needs_kv), tokens
            except WorkerDied:
                self._result.failed_attempts["D died"] += 1
            except HandoffError as error:
                self._result.failed_attempts[error.reason] += 1
                num_failed += 1
                if error.reason is FailureReason.DEADLINE:
                    return "failed: deadline", None
            if source is not None:
                self._tell(Message.ABORT, ticket, partial(source.abort, ticket))
        return "failed: too many attempts", None

    async def go_by_pool(self, asked: Asked) -> tuple[str, list[int] | None]:
        """The same, through the pool. Its failures are no request's."""
        await self._fill_pool(asked)
        for number in range(1, MAX_ATTEMPTS + 1):
            decode = await self._choose_decode(asked.number + number)
            request = make_request(
                f"{asked.number}.{number}", asked.prompt, asked.max_tokens, RequestKind.GENERATE, awaits_kv=True
            )
            members, writes_back = self._cluster.members(), asked.number % WRITE_BACK_EVERY == 0
            try:
                tokens, read = await decode.generate_from_pool(request, members, writes_back, asked.deadline)
            except WorkerDied:
                self._result.failed_attempts["D died"] += 1
            except HandoffError as error:
                self._result.failed_attempts[error.reason] += 1
                return "failed: deadline", None
            else:
                return ("read from the pool" if read is not None and read.num_received else "computed"), tokens
        return "failed: too many attempts", None

    async def _fill_pool(self, asked: Asked) -> None:
        """Returns when a prefill worker has, or will not in time; the message to it may be spoiled too."""
        source, members = self._choose_prefill(asked.number), self._cluster.members()
        draw = self._result.faults.draw(Message.PREFILL, asked.session.hex())
        copies = {Fault.LOST: 0, Fault.TWICE: 2}.get(draw.fault or Fault.LATE, 1)
        fills = []
        for copy in range(copies):
            request = make_request(f"{asked.number}.p{copy}", asked.prompt, 1, RequestKind.PREFILL)
            fills.append(self._cluster.in_background(source.prefill_for_pool(request, members)))
        if fills and draw.fault is not Fault.LATE:
            await asyncio.wait(fills, timeout=POOLED_PREFILL_S * self._scale)
        for fill in fills:
            if draw.fault is not Fault.LATE:
                fill.cancel()
            if fill.done() and not fill.cancelled() and isinstance(fill.exception(), WorkerDied):
                self._result.failed_attempts["P died"] += 1

    def _tell_prefill(self, worker: PrefillWorker, request_id: str, asked: Asked, ticket: Ticket) -> None:
        def deliver() -> Coroutine[Any, Any, None]:
            request = make_request(request_id, asked.prompt, asked.max_tokens, RequestKind.PREFILL)
            return worker.prefill(request, ticket)

        self._tell(Message.PREFILL, ticket, deliver)

    def _tell(self, message: Message, ticket: Ticket, deliver: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The proxy's own wire is no better."""
        draw = self._result.faults.draw(message, ticket.session.hex())
        delays_s: dict[Fault | None, list[float]] = {
            None: [0.0],
            Fault.LOST: [],
            Fault.LATE: [draw.delay_s],
            Fault.TWICE: [0.0, draw.delay_s],
        }
        for delay_s in delays_s[draw.fault]:
            self._cluster.in_background(_arrive(delay_s, deliver))

    def _choose_prefill(self, number: int) -> PrefillWorker:
        """Perhaps a dead one: the proxy need not know yet."""
        return self._cluster.prefill[f"P{number % NUM_WORKERS}"]

    async def _choose_decode(self, number: int) -> DecodeWorker:
        worker = self._cluster.decode[f"D{number % NUM_WORKERS}"]
        if not worker.is_dead:
            return worker
        await asyncio.sleep(1.1 * self._restart_s)
        return self._cluster.decode[worker.name]


async def _arrive(delay_s: float, deliver: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await asyncio.sleep(delay_s)
    with suppress(HandoffError, EngineError):  # the decode worker sees what comes of it
        await deliver()
