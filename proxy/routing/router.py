"""Chooses the workers of one request: a prefill and a decode worker together, or the decode worker alone.

The policy says which; this says between whom, and whether it can be now. Whatever the policy, cost decides whether a
decode worker computes a prompt itself: one that is not worth a hand-off, is in its cache, or would wait long elsewhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cache
from time import monotonic

from proxy.config import ProxyConfig
from proxy.metrics import ProxyMetrics
from proxy.request.job import Job
from proxy.request.kv_mode import KvMode
from proxy.routing.cost import CostWeights, local_reason
from proxy.routing.option import Option, View, decodes_alone, least_avoided, pairs, prefills_alone
from proxy.routing.placement import Constraints, Placement, Waiter
from proxy.routing.policy import POLICIES, Policy, Question, prefix_aware
from proxy.routing.prefix_index import PrefixIndex
from proxy.routing.prompt_hashes import PromptHashes, session_of
from proxy.routing.room import Room
from proxy.routing.worker_view import WorkerView
from proxy.workers.worker_link import WorkerLink
from proxy.workers.worker_pool import WorkerPool

NO_PREFILL_WORKER = "no_prefill_worker"
ASKED = "asked"  # by x-kv-mode


class Router:
    """Maintains the turn; all else it reads from the pool and the index at each decision."""

    def __init__(self, pool: WorkerPool, index: PrefixIndex, config: ProxyConfig, metrics: ProxyMetrics) -> None:
        self.room = Room(config.dispatch_ahead, config.long_prompt_tokens, config.max_long_prefills)
        self._pool = pool
        self._index = index
        self._metrics = metrics
        self._policy_name = config.routing
        self._weights = CostWeights(
            load=config.load_weight,
            stream=config.stream_tokens,
            transfer=config.transfer_weight,
            remote_transfer=config.remote_transfer_weight,
            handoff=config.handoff_tokens,
            local_prefill=config.local_prefill_weight,
        )
        self._goes_local = config.local_prefill == "by_cost"
        self._hashes = PromptHashes()
        self._turn = 0

    def place(self, waiter: Waiter, *, gated: bool) -> Placement | None:
        """None: not now. `gated`: only where there is room."""
        job, asked = waiter.job, waiter.constraints
        choosing_since = monotonic()
        decodes = self._pool.decode_links()
        if asked.decode in decodes:
            decodes = [asked.decode]
        if not decodes:
            return None
        is_pooled = job.kv_mode is KvMode.POOLED
        nodes = self._pool.ready_nodes() if is_pooled or job.writes_back else ()
        option, local_reason = self._choose(job, asked, decodes, is_pooled=is_pooled and bool(nodes), gated=gated)
        if option is None:
            return None
        self._count(option, job)
        return Placement(option.decode, option.prefill, option.transport, local_reason, choosing_since, nodes)

    def _choose(
        self, job: Job, asked: Constraints, decodes: Sequence[WorkerLink], *, is_pooled: bool, gated: bool
    ) -> tuple[Option | None, str | None]:
        """And why a decode worker computes the prompt, where one does."""
        view = cache(self._view_of(job))
        reason = asked.local_reason or (ASKED if job.kv_mode is KvMode.LOCAL else None)
        if asked.prompt_in_pool:
            return self._best(decodes_alone(decodes, view), job, asked), None
        prefills = self._pool.prefill_links() if reason is None else []
        if gated and not self.room.is_anywhere([*prefills, *decodes], job):
            return None, None  # at once: in a flood this is asked for each request that comes
        if is_pooled and prefills:
            has_decode = not gated or any(self.room.for_stream(link, job) for link in decodes)
            options = prefills_alone(prefills, view) if has_decode else []
            return self._best(self._open(options, job, gated=gated), job, asked), None
        together = pairs(prefills, decodes, view, asked.failed)
        alone = self._open(decodes_alone(decodes, view), job, gated=gated)
        if not together:
            return self._best(alone, job, asked), reason or NO_PREFILL_WORKER
        return self._pair_or_alone(together, alone, job, asked, gated=gated)

    def _pair_or_alone(
        self, together: Sequence[Option], alone: Sequence[Option], job: Job, asked: Constraints, *, gated: bool
    ) -> tuple[Option | None, str | None]:
        """A pair that has no room just now is waited for, unless a decode worker alone costs less than it would."""
        together = [option for option in together if option.prefill is asked.prefill] or together
        ready = self._open(together, job, gated=gated)
        pair = self._best(ready or together, job, asked)
        local = self._best(alone, job, asked, prefix_aware) if self._goes_local and not job.keeps_kv_mode else None
        if pair is not None and local is not None:
            reason = local_reason(pair.candidate, local.candidate, len(job.prompt_ids), self._weights)
            if reason is not None:
                return local, reason.value
        return pair if ready else None, None

    def _open(self, options: Sequence[Option], job: Job, *, gated: bool) -> Sequence[Option]:
        return [option for option in options if not gated or self.room.is_in(option, job)]

    def _best(
        self, options: Sequence[Option], job: Job, asked: Constraints, policy: Policy | None = None
    ) -> Option | None:
        """By the configured policy, unless another one is given. None when there are no options."""
        if not options:
            return None
        options = least_avoided(options, asked.avoid)
        draw, session = secrets.randbits(64), session_of(job.prompt_ids)
        question = Question(len(job.prompt_ids), self._turn, draw, session, self._weights)
        choose = policy or POLICIES[self._policy_name]
        return options[choose([option.candidate for option in options], question)]

    def _view_of(self, job: Job) -> View:
        def view(link: WorkerLink) -> WorkerView:
            return link.view(self._num_cached_tokens(link, job))

        return view

    def _num_cached_tokens(self, link: WorkerLink, job: Job) -> int:
        context = link.hash_context
        if context is None:
            return 0
        return self._index.num_cached(link.incarnation, self._hashes.of(job, context)) * context.block_size

    def _count(self, option: Option, job: Job) -> None:
        self._turn += 1
        self._metrics.routing_decisions.labels(self._policy_name).inc()
        computes = option.prefill or option.decode
        if computes is None or computes.hash_context is None:
            return
        hashes = self._hashes.of(job, computes.hash_context)
        num_cached = self._index.num_cached(computes.incarnation, hashes)
        self._index.used(computes.incarnation, hashes[:num_cached])
        self._metrics.prefix_index_queries.inc(len(hashes))
        self._metrics.prefix_index_hits.inc(num_cached)
