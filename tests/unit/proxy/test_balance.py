"""A thousand requests over four prefill workers: none idles while another has a queue, none gets much more.

Field report D20. The workers are scripted: in each round each computes so many tokens, reports, and gets the next.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from functools import partial

import pytest

from engine.block_hash import block_hashes
from proxy.request.lifecycle import Lifecycle, Phase
from rpc import worker_pb2
from tests.unit.proxy.conftest import Cluster, MakeCluster
from tests.unit.proxy.fake_worker import FakeWorker

NUM_REQUESTS = 1000
ROUND_TOKENS = 1024
AHEAD = 2  # requests that may wait in a worker, the proxy's default


class SteppedPrefill:
    """One prefill worker that computes when it is told to."""

    def __init__(self, worker: FakeWorker) -> None:
        self.worker = worker
        self.num_computed_tokens = 0
        self.queue: deque[worker_pb2.StartPrefill] = deque()
        self._num_left = 0  # tokens of the first one
        self._held: set[bytes] = set()
        self._num_updates = 0
        worker.on_start = self._take

    def compute(self, num_tokens: int) -> list[worker_pb2.StartPrefill]:
        """The prompts that are done by then."""
        done = []
        while self.queue and num_tokens:
            self._num_left = self._num_left or self._num_uncached(self.queue[0])
            computed = min(num_tokens, self._num_left)
            num_tokens -= computed
            self._num_left -= computed
            self.num_computed_tokens += computed
            if not self._num_left:
                done.append(self._finish(self.queue.popleft()))
        return done

    def report(self) -> None:
        num_tokens = sum(len(start.request.prompt_ids) for start in self.queue)
        num_waiting = max(0, len(self.queue) - 1)
        num_running = len(self.queue) - num_waiting
        self.worker.report(num_running=num_running, num_waiting=num_waiting, num_queued_tokens=num_tokens)

    def _take(self, start: worker_pb2.StartPrefill) -> None:
        self.queue.append(start)
        self.report()

    def _hashes(self, start: worker_pb2.StartPrefill) -> list[bytes]:
        return block_hashes(self.worker.hash_context, start.request.prompt_ids)

    def _num_uncached(self, start: worker_pb2.StartPrefill) -> int:
        num_held = sum(block_hash in self._held for block_hash in self._hashes(start))
        return max(1, len(start.request.prompt_ids) - num_held * self.worker.hash_context.block_size)

    def _finish(self, start: worker_pb2.StartPrefill) -> worker_pb2.StartPrefill:
        self._held.update(self._hashes(start))
        self.worker.caches(bytes(start.request.prompt_ids), after=self._num_updates, through=self._num_updates + 1)
        self._num_updates += 1
        self.worker.prefilled(start)
        return start


class Balance:
    """Maintains the rounds, in which nobody waits for a worker that has nothing to do."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._requests: list[Lifecycle] = []
        self.prefills = [SteppedPrefill(w) for w in cluster.workers if w.role == worker_pb2.ROLE_PREFILL]
        decodes = [w for w in cluster.workers if w.role == worker_pb2.ROLE_DECODE]
        self._decoding: dict[str, tuple[FakeWorker, worker_pb2.StartDecode]] = {}
        for worker in decodes:
            worker.on_start = partial(self._keep, worker)

    def _keep(self, worker: FakeWorker, start: worker_pb2.StartDecode) -> None:
        self._decoding[start.request.request_id] = worker, start

    async def run(self, prompts: Sequence[str]) -> float:
        """Answers all of them with one token each; the busiest worker's tokens over the least busy one's."""
        before = [prefill.num_computed_tokens for prefill in self.prefills]
        self._requests = [await self.cluster.submit(prompt, max_tokens=1) for prompt in prompts]
        num_done = 0
        while num_done < len(prompts):
            await self.cluster.until(self._all_are_busy)
            for start in [start for prefill in self.prefills for start in prefill.compute(ROUND_TOKENS)]:
                await self._speak(start.request.request_id)
                num_done += 1
            for prefill in self.prefills:
                prefill.report()
            await self._ended(num_done)
        computed = [p.num_computed_tokens - num for p, num in zip(self.prefills, before, strict=True)]
        return max(computed) / min(computed)

    async def _speak(self, request_id: str) -> None:
        await self.cluster.until(lambda: request_id in self._decoding)
        worker, start = self._decoding.pop(request_id)
        worker.say(start, b"a", finish="length")

    async def _ended(self, num_requests: int) -> None:
        await self.cluster.until(lambda: self._num_ended() == num_requests)

    def _num_ended(self) -> int:
        return sum(request.phase is Phase.FINISHED for request in self._requests)

    def _all_are_busy(self) -> bool:
        """Or nothing is left to send. Nobody ever has more waiting than may be."""
        lengths = [len(prefill.queue) for prefill in self.prefills]
        assert max(lengths) <= AHEAD + 1
        num_queued = sum(request.phase is Phase.QUEUED for request in self._requests)
        is_there = sum(lengths) + self._num_ended() + num_queued == len(self._requests)
        return is_there and (min(lengths) > AHEAD or num_queued == 0)


def text(draw: random.Random, num_tokens: int) -> str:
    return "".join(draw.choices("abcdefgh ", k=num_tokens))


@pytest.mark.timeout(120)
async def test_load_is_even_over_prompts_of_all_lengths_and_over_one_long_beginning(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=4, decode=2)
    balance = Balance(cluster)
    draw = random.Random(20)
    mixed = [text(draw, draw.choice((8, 40, 200, 480))) for _ in range(NUM_REQUESTS)]
    assert await balance.run(mixed) < 1.3
    beginning = text(draw, 320)
    alike = [beginning + text(draw, draw.randint(1, 160)) for _ in range(NUM_REQUESTS // 4)]
    num_before = sum(prefill.num_computed_tokens for prefill in balance.prefills)
    assert await balance.run(alike) < 1.3
    num_computed = sum(prefill.num_computed_tokens for prefill in balance.prefills) - num_before
    assert num_computed < sum(len(prompt) - len(beginning) for prompt in alike) + 3000  # the beginning a few times only
