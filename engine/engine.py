"""One model on one device, stepped: schedule, compute, finish.

Not thread-safe: all but `compute` is called in one thread (`EngineThread.call`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from engine.admission import check_request
from engine.batch import Batch, Outcome, Runner, Work
from engine.block_hash import HashContext
from engine.block_pool import BlockCounts, BlockPool
from engine.config import EngineConfig
from engine.errors import UnknownRequest
from engine.grammar import Grammars
from engine.host_cache import HostCache
from engine.kv_cache import KVCache
from engine.request import Request, RequestState
from engine.sampled_token import SampledToken, SamplingFailure
from engine.scheduler import Preemption, Schedule, Scheduler, TokenOutput
from engine.swapping import Swap

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the rest of the system must know about the model."""

    fingerprint: str  # of the weights' content and the configuration
    max_model_len: int  # tokens, prompt and completion together
    vocab_size: int
    eos_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    num_running: int = 0
    num_waiting: int = 0
    num_receiving: int = 0
    num_held: int = 0
    num_uncomputed_tokens: int = 0
    blocks: BlockCounts = field(default_factory=lambda: BlockCounts(0, 0, 0, 0))

    @property
    def num_open(self) -> int:
        return self.num_running + self.num_waiting + self.num_receiving + self.num_held


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did. Empty when nothing could run."""

    tokens: Sequence[TokenOutput] = ()
    reserved: Sequence[Request] = ()  # just got all their blocks, and wait for KV from elsewhere
    preempted: Sequence[Preemption] = ()
    swaps: Sequence[Swap] = ()  # copied before the batch was computed
    failed: Sequence[tuple[str, str]] = ()  # (request id, message); they are gone
    unsampled: Sequence[tuple[str, str]] = ()  # so are these: no token may follow, as when a grammar cannot go on
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    works: Sequence[Work] = ()  # what was computed; a subscriber may read them, but keeps none
    started_at: float = 0.0  # of the computation, on the monotonic clock
    duration_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        return self.num_prefill_tokens + self.num_decode_tokens


class Engine:
    """Maintains the requests, their blocks and the cache; a request leaves when it ends, is aborted or released."""

    def __init__(
        self,
        config: EngineConfig,
        model: ModelInfo,
        runner: Runner,
        cache: KVCache,
        grammars: Grammars | None = None,
    ) -> None:
        """Raises ValueError when the scheduling strategy cannot serve the model's context."""
        config.scheduling.check_context(model.max_model_len)
        self.config = config
        self.model = model
        self.runner = runner
        self.cache = cache
        self.pool = BlockPool(cache.num_blocks, config.enable_prefix_caching)
        self.hash_context = HashContext(model.fingerprint, cache.layout.dtype, config.block_size)
        self.scheduler = Scheduler(config, self.pool, self.hash_context)
        self.host_cache = HostCache(cache, config.scheduling.num_swap_blocks)
        self.grammars = grammars or Grammars(None)
        self.requests: dict[str, Request] = {}

    @property
    def capacity(self) -> int:
        """Tokens that the KV cache holds."""
        return self.cache.num_blocks * self.config.block_size

    def add(self, request: Request) -> None:
        """Queues the request. Raises RequestInvalid when it can never run, ValueError for a known id."""
        if request.request_id in self.requests:
            raise ValueError(f"request {request.request_id} exists already")
        check_request(request, self.model.vocab_size, self.model.max_model_len, self.capacity)
        self.grammars.admit(request)
        self.requests[request.request_id] = request
        self.scheduler.add(request)

    def abort(self, request_id: str) -> bool:
        """Ends the request and frees its blocks; False when there is no such request."""
        request = self.requests.pop(request_id, None)
        if request is None:
            return False
        self.scheduler.remove(request)
        return True

    def pin(self, request_id: str) -> None:
        self.scheduler.pin(self._known(request_id))

    def accept(self, request_id: str, first_token: SampledToken) -> TokenOutput:
        """A RECEIVING request's blocks hold valid KV for all its tokens; it runs from `first_token` on."""
        output = self.scheduler.accept(self._receiving(request_id), first_token)
        self._forget_ended([output])
        return output

    def accept_prefix(self, request_id: str, num_tokens: int) -> None:
        """A RECEIVING request's blocks hold valid KV for its first tokens, in whole blocks; the rest is computed here.

        Raises ValueError unless these are at least what it had, and leave a token to compute.
        """
        request = self._receiving(request_id)
        is_range = request.num_computed <= num_tokens < request.num_tokens
        if not is_range or num_tokens % self.config.block_size:
            raise ValueError(
                f"the KV of {num_tokens} tokens of request {request_id} cannot be taken over: it has "
                f"{request.num_computed} of {request.num_tokens}, in blocks of {self.config.block_size}"
            )
        self.scheduler.accept_prefix(request, num_tokens)

    def step(self) -> StepResult:
        """Schedule, compute, finish: one whole step in the calling thread."""
        schedule = self.schedule()
        return self.finish(schedule, self.compute(schedule.batch))

    def schedule(self) -> Schedule:
        """What to compute; the KV that preemption moves is moved already."""
        schedule = self.scheduler.schedule()
        for request in schedule.admitted:
            request.admitted_at = monotonic()
        for swap in schedule.swaps:
            started_at = monotonic()
            self.host_cache.copy(swap)
            self.scheduler.swapping.costs.copied(len(swap.blocks), monotonic() - started_at)
        return schedule

    def compute(self, batch: Batch) -> Outcome:
        """The part of a step that may run in another thread: it touches the model and the batch's own blocks only."""
        started_at = monotonic()
        try:
            tokens = self.runner.run(batch) if batch.works else []
        except Exception as error:
            logger.exception("a batch of %d requests failed", len(batch.works))
            if len(batch.works) > 1:
                if batch.watch is not None:
                    batch.watch.tell(0)
                return self._compute_apart(batch)
            return Outcome(failed={batch.works[0].request.request_id: f"{type(error).__name__}: {error}"})
        answers = {work.request.request_id: token for work, token in zip(batch.sampled, tokens, strict=True)}
        return Outcome(
            sampled={request_id: token for request_id, token in answers.items() if isinstance(token, SampledToken)},
            unsampled={
                request_id: token.message for request_id, token in answers.items() if isinstance(token, SamplingFailure)
            },
            started_at=started_at,
            duration_s=monotonic() - started_at,
        )

    def finish(self, schedule: Schedule, outcome: Outcome) -> StepResult:
        """Takes in what was computed. Requests may have come and gone since `schedule`."""
        for request_id in [*outcome.failed, *outcome.unsampled]:
            self.abort(request_id)
        works = [work for work in schedule.batch.works if work.request.request_id not in outcome.failed]
        num_decode = sum(1 for work in works if work.num_tokens == 1 and work.request.num_generated > 0)
        num_prefill = sum(work.num_tokens for work in works) - num_decode
        if num_prefill > num_decode:
            self.scheduler.swapping.costs.computed(num_prefill + num_decode, outcome.duration_s)
        tokens = self.scheduler.update(schedule.batch, outcome.sampled)
        self._forget_ended(tokens)
        return StepResult(
            tokens=tokens,
            reserved=schedule.reserved,
            preempted=schedule.preempted,
            swaps=schedule.swaps,
            failed=list(outcome.failed.items()),
            unsampled=list(outcome.unsampled.items()),
            num_prefill_tokens=num_prefill,
            num_decode_tokens=num_decode,
            works=works,
            started_at=outcome.started_at,
            duration_s=outcome.duration_s,
        )

    def _compute_apart(self, batch: Batch) -> Outcome:
        """One request's fault must not end its neighbours: each is computed alone, over the same KV."""
        started_at = monotonic()
        outcomes = [self.compute(Batch((work,))) for work in batch.works]
        return Outcome(
            sampled={request_id: token for outcome in outcomes for request_id, token in outcome.sampled.items()},
            unsampled={request_id: error for outcome in outcomes for request_id, error in outcome.unsampled.items()},
            failed={request_id: error for outcome in outcomes for request_id, error in outcome.failed.items()},
            started_at=started_at,
            duration_s=monotonic() - started_at,
        )

    def load(self) -> EngineLoad:
        scheduler = self.scheduler
        return EngineLoad(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_receiving=len(scheduler.receiving),
            num_held=len(scheduler.held),
            num_uncomputed_tokens=scheduler.num_uncomputed_tokens,
            blocks=self.pool.counts(),
        )

    def check_integrity(self) -> None:
        """Raises block_pool.IntegrityError unless requests and pools agree on every block."""
        self.pool.check_integrity([block for request in self.requests.values() for block in request.blocks])
        self.scheduler.swapping.space.check_integrity(
            [b for request in self.requests.values() for b in request.swapped]
        )

    def _known(self, request_id: str) -> Request:
        request = self.requests.get(request_id)
        if request is None:
            raise UnknownRequest(f"request {request_id} is not here")
        return request

    def _receiving(self, request_id: str) -> Request:
        request = self._known(request_id)
        if request.state is not RequestState.RECEIVING:
            raise UnknownRequest(f"request {request_id} is {request.state.value}, not receiving")
        return request

    def _forget_ended(self, outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            if self.requests[output.request_id].state is RequestState.FINISHED:
                del self.requests[output.request_id]
