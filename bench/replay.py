"""Replays a trace through one routing policy, over workers with a cache and a queue of their own, in virtual time.

Requests arrive at the trace's times; a worker computes what it has not cached, one prompt after the other. Caches are
the engine's block pools, and the policy knows of them what they publish, through the proxy's index.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.replay_worker import ReplayWorker
from bench.trace import BLOCK_TOKENS, TracedRequest
from proxy.routing.cost import Candidate, CostWeights
from proxy.routing.policy import Policy, Question
from proxy.routing.prefix_index import PrefixIndex

SESSION_BLOCKS = 2  # the first is the same in the whole trace


@dataclass(frozen=True, slots=True)
class Setting:
    """Of one replay, besides the policy."""

    num_workers: int = 10
    cache_tokens: int = 3_000_000  # of each
    tokens_per_s: float = 5000.0  # that each computes
    index_blocks: int = 262_144  # the proxy's default
    weights: CostWeights = field(default_factory=CostWeights)
    seed: int = 1

    @property
    def cache_blocks(self) -> int:
        return self.cache_tokens // BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one policy."""

    hit_rate: float  # tokens found in a cache, of all
    token_imbalance: float  # computed by the busiest worker, of the mean
    request_imbalance: float
    wait_p50_s: float  # from arrival to the computed prompt
    wait_p99_s: float


class Replay:
    """Maintains the workers and what they compute."""

    def __init__(self, policy: Policy, setting: Setting) -> None:
        self._policy = policy
        self._weights = setting.weights
        self._workers = [
            ReplayWorker(f"worker-{i}", setting.cache_blocks, setting.tokens_per_s) for i in range(setting.num_workers)
        ]
        self._index = PrefixIndex(setting.index_blocks)
        self._draw = random.Random(setting.seed)
        self._computing: list[tuple[float, int, ReplayWorker]] = []  # (end, turn, where), the next to end first
        self._waits: list[float] = []

    def run(self, requests: Sequence[TracedRequest]) -> Result:
        for turn, request in enumerate(requests):
            self._compute_until(request.arrived_at)
            worker = self._route(request, turn)
            end = worker.start(request, request.arrived_at)
            self._waits.append(end - request.arrived_at)
            heapq.heappush(self._computing, (end, turn, worker))
        waits = sorted(self._waits)
        computed = [worker.num_computed_tokens for worker in self._workers]
        return Result(
            hit_rate=1 - sum(computed) / num_tokens(requests),
            token_imbalance=_imbalance(computed),
            request_imbalance=_imbalance([worker.num_requests for worker in self._workers]),
            wait_p50_s=waits[len(waits) // 2],
            wait_p99_s=waits[len(waits) * 99 // 100],
        )

    def _route(self, request: TracedRequest, turn: int) -> ReplayWorker:
        num_cached = [self._index.num_cached(worker.name, request.block_hashes) for worker in self._workers]
        candidates = [
            Candidate(worker.view(request.arrived_at, cached * BLOCK_TOKENS), None)
            for worker, cached in zip(self._workers, num_cached, strict=True)
        ]
        session = b"".join(request.block_hashes[:SESSION_BLOCKS])
        question = Question(request.num_tokens, turn, self._draw.getrandbits(64), session, self._weights)
        chosen = self._policy(candidates, question)
        self._index.used(self._workers[chosen].name, request.block_hashes[: num_cached[chosen]])
        return self._workers[chosen]

    def _compute_until(self, now: float) -> None:
        while self._computing and self._computing[0][0] <= now:
            _, _, worker = heapq.heappop(self._computing)
            worker.finish_first()
            self._index.apply(worker.name, worker.cache_update())


def shared_hit_rate(requests: Sequence[TracedRequest], setting: Setting) -> float:
    """Of one cache as large as all together, which has every prompt from its arrival on."""
    worker = ReplayWorker("all", setting.num_workers * setting.cache_blocks, setting.tokens_per_s)
    return sum(worker.take_in(request.block_hashes) for request in requests) * BLOCK_TOKENS / num_tokens(requests)


def num_tokens(requests: Sequence[TracedRequest]) -> int:
    return sum(request.num_tokens for request in requests)


def _imbalance(loads: Sequence[int]) -> float:
    return max(loads) * len(loads) / sum(loads)
