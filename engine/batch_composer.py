"""Who computes how much in a step, of those that run: the second half of a strategy. Changes nothing; pure."""

from __future__ import annotations

from collections.abc import Iterable

from engine.batch import Batch, Work
from engine.request import Request
from engine.scheduling import STRATEGIES, SchedulingConfig
from engine.waiting_queue import WaitingQueue


class BatchComposer:
    def __init__(self, config: SchedulingConfig, queue: WaitingQueue, block_size: int) -> None:
        self._config = config
        self._strategy = STRATEGIES[config.strategy]
        self._queue = queue  # knows the order
        self._block_size = block_size

    def compose(self, running: Iterable[Request]) -> Batch:
        """Decodes first, then prompts in order, as many and as much of each as the strategy and its knobs allow."""
        decodes: list[Request] = []
        prompts: list[Request] = []
        for request in running:
            num_tokens = len(request.token_ids)
            if len(request.blocks) * self._block_size >= num_tokens:
                (decodes if num_tokens - request.num_computed == 1 else prompts).append(request)
        if prompts and self._strategy.prompts_alone:
            decodes = []
        works = [Work(request, request.num_computed, 1, sample=True) for request in decodes]
        return Batch((*works, *self._chunks(prompts, self._config.max_num_batched_tokens - len(works))))

    def _chunks(self, prompts: list[Request], budget: int) -> list[Work]:
        chunks: list[Work] = []
        num_partial = num_long_partial = 0
        for request in sorted(prompts, key=self._queue.key):
            rest = request.num_uncomputed
            size = min(rest, budget, rest if self._strategy.whole_prompts else self._config.prefill_chunk_size)
            if size == 0 or (size < rest and self._strategy.whole_prompts):
                break
            if size < rest:
                is_long = self._queue.is_long(request)
                if num_partial == self._config.max_num_partial_prefills or (
                    is_long and num_long_partial == self._config.max_long_partial_prefills
                ):
                    continue
                num_partial += 1
                num_long_partial += is_long
            chunks.append(Work(request, request.num_computed, size, sample=size == rest))
            budget -= size
        return chunks
