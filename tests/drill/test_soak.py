"""Many mixed requests, 32 at a time, through a staging ring of one slot that few prompts fit in: none decays.

Between them one prompt comes again and again; its text must stay what it was.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.fake_runner import FakeRunner
from kv_transfer.config import TransferConfig
from tests.engine_config import engine_config
from tests.unit.workers.pair import FakeStream, Pair, token_request

pytestmark = pytest.mark.drill

CANARY = list(range(60, 83))
LENGTHS = (1, 2, 4, 5, 8, 12, 16, 17, 30, 64)
ENGINE = engine_config(block_size=4, num_blocks=128, prefill_chunk_size=16)
ONE_SMALL_SLOT = TransferConfig(staging_slots=1, max_quarantined_slots=0, staging_slot_bytes=4 * 256)


@pytest.mark.parametrize("num_requests", [300, pytest.param(1000, marks=pytest.mark.long)])
async def test_many_requests_and_every_tenth_time_the_same_one_get_their_text(num_requests: int) -> None:
    """Field reports D02 and D09."""
    rng = random.Random(23)
    shared = [rng.choices(range(200), k=40) for _ in range(4)]
    places = asyncio.Semaphore(32)

    def prompt_of(n: int) -> list[int]:
        if n % 10 == 0:
            return CANARY
        prefix = rng.choice(shared)[: rng.choice([0, 0, 8, 30])]
        return prefix + rng.choices(range(200), k=rng.choice(LENGTHS))

    async def ask(pair: Pair, n: int, prompt: list[int]) -> None:
        async with places:
            stream = pair.to_d = FakeStream()
            pair.start(token_request(f"r{n}", prompt, max_tokens=4))
            assert await stream.finished(f"r{n}") == FakeRunner.expected(prompt, 4), f"request {n}: {prompt}"

    async with Pair(ENGINE, ONE_SMALL_SLOT) as pair:
        async with asyncio.TaskGroup() as group:
            for n in range(num_requests):
                group.create_task(ask(pair, n, prompt_of(n)))
        assert pair.sample("pdserve_kv_transfer_failures_total") == 0
        await pair.check_idle()
