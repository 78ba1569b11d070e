"""A worker in virtual time: the engine's block pool as its cache, and prompts computed one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bench.trace import BLOCK_TOKENS, TracedRequest
from cluster.cache_log import CacheLog
from engine.block_pool import BlockPool, CacheChange
from proxy.routing.worker_view import WorkerView
from rpc import worker_pb2


class ReplayWorker:
    """Maintains its cache, and the prompts that it has not computed; what is cached is decided when one is queued."""

    def __init__(self, name: str, num_blocks: int, tokens_per_s: float) -> None:
        self.name = name
        self.num_requests = 0
        self.num_computed_tokens = 0
        self._tokens_per_s = tokens_per_s
        self._busy_until = 0.0
        self._queue: deque[TracedRequest] = deque()
        self._pool = BlockPool(num_blocks)
        self._log = CacheLog()
        self._told = 0
        self._changes: list[CacheChange] = []
        self._pool.subscribe(self._changes.append)

    def view(self, now: float, num_cached_tokens: int) -> WorkerView:
        num_queued_tokens = max(0.0, self._busy_until - now) * self._tokens_per_s
        return WorkerView(self.name, len(self._queue), len(self._queue), round(num_queued_tokens), num_cached_tokens)

    def start(self, request: TracedRequest, now: float) -> float:
        """Queues it; when it will be computed."""
        num_cached = len(self._pool.lookup(request.block_hashes)) * BLOCK_TOKENS
        num_computed = max(1, request.num_tokens - num_cached)
        self.num_requests += 1
        self.num_computed_tokens += num_computed
        self._busy_until = max(now, self._busy_until) + num_computed / self._tokens_per_s
        self._queue.append(request)
        return self._busy_until

    def finish_first(self) -> None:
        self.take_in(self._queue.popleft().block_hashes)

    def take_in(self, block_hashes: Sequence[bytes]) -> int:
        """Into the cache, which evicts for it; how many of the first blocks it had."""
        hits = self._pool.lookup(block_hashes)
        self._pool.acquire(hits)
        missing = block_hashes[len(hits) :]
        blocks = self._pool.allocate(len(missing)) or []
        for block, block_hash in zip(blocks, missing, strict=False):
            self._pool.publish(block, block_hash)
        self._pool.release([*hits, *blocks])
        return len(hits)

    def cache_update(self) -> worker_pb2.CacheUpdate:
        """What changed since the last one, as a worker would tell a proxy."""
        self._log.append(self._changes)
        self._changes.clear()
        update = self._log.since(self._told)
        self._told = self._log.num_changes
        return update
