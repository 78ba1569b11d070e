"""What the scheduler alone costs: microseconds a step with many requests running and many waiting.

No model: a step is `schedule` and `update` on the real classes; every request decodes and none ends.
"""

from __future__ import annotations

import argparse
from time import perf_counter

from engine.block_hash import HashContext
from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.sampled_token import SampledToken
from engine.scheduler import Scheduler
from engine.scheduling import SchedulingConfig

RUNNING = (10, 100, 1000, 2000)
PROMPT_TOKENS = 500
BLOCK_SIZE = 16
TOKEN = SampledToken(7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=200, help="measured, after as many that are not")
    arguments = parser.parse_args()
    print(f"{arguments.waiting} waiting, {arguments.steps} steps each; microseconds a step")
    print("running  schedule    update      both   both a running request")
    for num_running in RUNNING:
        scheduler = filled(num_running, arguments.waiting, 2 * arguments.steps)
        measure(scheduler, arguments.steps)
        schedule_us, update_us = measure(scheduler, arguments.steps)
        both_us = schedule_us + update_us
        print(f"{num_running:7} {schedule_us:9.0f} {update_us:9.0f} {both_us:9.0f} {both_us / num_running:12.2f}")


def filled(num_running: int, num_waiting: int, num_steps: int) -> Scheduler:
    """A scheduler whose places are all taken by requests that decode, each with room for `num_steps` more tokens."""
    blocks_each = -(-(PROMPT_TOKENS + num_steps + 2) // BLOCK_SIZE)
    scheduling = SchedulingConfig(
        max_num_seqs=num_running, max_num_batched_tokens=max(8192, num_running), prefill_chunk_size=8192
    )
    config = EngineConfig(block_size=BLOCK_SIZE, num_blocks=num_running * (blocks_each + 1), scheduling=scheduling)
    scheduler = Scheduler(config, BlockPool(config.num_blocks), HashContext("bench", "float32", BLOCK_SIZE))
    for n in range(num_running + num_waiting):
        sampling = SamplingParams(max_tokens=100_000)
        scheduler.add(Request(f"r{n}", [n] * PROMPT_TOKENS, PROMPT_TOKENS, sampling, arrived_at=float(n)))
    while any(request.num_generated == 0 for request in scheduler.running) or not scheduler.running:
        step(scheduler)
    assert (len(scheduler.running), len(scheduler.waiting)) == (num_running, num_waiting)
    return scheduler


def step(scheduler: Scheduler) -> tuple[float, float]:
    """Seconds in `schedule` and in `update`."""
    started_at = perf_counter()
    batch = scheduler.schedule().batch
    sampled = {work.request.request_id: TOKEN for work in batch.sampled}
    computed_at = perf_counter()
    scheduler.update(batch, sampled)
    return computed_at - started_at, perf_counter() - computed_at


def measure(scheduler: Scheduler, num_steps: int) -> tuple[float, float]:
    """Microseconds a step in `schedule` and in `update`."""
    durations = [step(scheduler) for _ in range(num_steps)]
    return tuple(1e6 * sum(column) / num_steps for column in zip(*durations, strict=True))


if __name__ == "__main__":
    main()
