"""One model on one device, stepped: schedule, compute, finish.

Not thread-safe: all but `compute` is called in one thread (`EngineThread.call`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from engine.batch import Batch, Outcome, Runner
from engine.block_hash import HashContext
from engine.block_pool import BlockCounts, BlockPool
from engine.config import EngineConfig
from engine.errors import RequestTooLong, UnknownRequest
from engine.kv_cache import KVCache
from engine.request import Request, RequestState
from engine.scheduler import Schedule, Scheduler, TokenOutput


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
    progressed: Sequence[Request] = ()  # their `num_computed` grew
    reserved: Sequence[Request] = ()  # just got all their blocks, and wait for a peer's KV
    preempted: Sequence[Request] = ()
    failed: Sequence[tuple[str, str]] = ()  # (request id, message); they are gone
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    duration_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        return self.num_prefill_tokens + self.num_decode_tokens


class Engine:
    """Maintains the requests, their blocks and the cache; a request leaves when it ends, is aborted or released."""

    def __init__(self, config: EngineConfig, model: ModelInfo, runner: Runner, cache: KVCache) -> None:
        self.config = config
        self.model = model
        self.runner = runner
        self.cache = cache
        self.pool = BlockPool(cache.num_blocks, config.enable_prefix_caching)
        self.hash_context = HashContext(model.fingerprint, cache.layout.dtype, config.block_size)
        self.scheduler = Scheduler(config, self.pool, self.hash_context)
        self.requests: dict[str, Request] = {}

    def add(self, request: Request) -> None:
        """Queues the request. Raises RequestTooLong when it could never end here, ValueError for a known id."""
        if request.request_id in self.requests:
            raise ValueError(f"request {request.request_id} exists already")
        self._check_fits(request)
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

    def accept(self, request_id: str, first_token: int) -> TokenOutput:
        """A RECEIVING request's blocks hold valid KV for all its tokens; it runs from `first_token` on."""
        request = self._known(request_id)
        if request.state is not RequestState.RECEIVING:
            raise UnknownRequest(f"request {request_id} is {request.state.value}, not receiving")
        output = self.scheduler.accept(request, first_token)
        self._forget_ended([output])
        return output

    def release(self, request_id: str) -> None:
        """A HELD request has been read, or never will be: its blocks fall back to the cache."""
        request = self._known(request_id)
        if request.state is not RequestState.HELD:
            raise UnknownRequest(f"request {request_id} is {request.state.value}, not held")
        self.abort(request_id)

    def step(self) -> StepResult:
        """Schedule, compute, finish: one whole step in the calling thread."""
        schedule = self.schedule()
        return self.finish(schedule, self.compute(schedule.batch))

    def schedule(self) -> Schedule:
        return self.scheduler.schedule()

    def compute(self, batch: Batch) -> Outcome:
        """The part of a step that may run in another thread: it touches the model and the batch's own blocks only."""
        started_at = perf_counter()
        try:
            sampled = self.runner.run(batch) if batch.works else []
        except Exception as error:  # noqa: BLE001  the model failed on this batch: its requests end, the engine goes on
            return Outcome(error=f"{type(error).__name__}: {error}")
        return Outcome(sampled, duration_s=perf_counter() - started_at)

    def finish(self, schedule: Schedule, outcome: Outcome) -> StepResult:
        """Takes in what was computed. Requests may have come and gone since `schedule`."""
        batch = schedule.batch
        if outcome.error is not None:
            failed = [(work.request.request_id, outcome.error) for work in batch.works]
            failed = [(request_id, error) for request_id, error in failed if self.abort(request_id)]
            return StepResult(reserved=schedule.reserved, preempted=schedule.preempted, failed=failed)
        num_decode = sum(1 for work in batch.works if work.num_tokens == 1 and work.request.num_generated > 0)
        tokens = self.scheduler.update(batch, outcome.sampled)
        self._forget_ended(tokens)
        return StepResult(
            tokens=tokens,
            progressed=[work.request for work in batch.works],
            reserved=schedule.reserved,
            preempted=schedule.preempted,
            num_prefill_tokens=batch.num_tokens - num_decode,
            num_decode_tokens=num_decode,
            duration_s=outcome.duration_s,
        )

    def load(self) -> EngineLoad:
        scheduler = self.scheduler
        return EngineLoad(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_receiving=len(scheduler.receiving),
            num_held=len(scheduler.held),
            num_uncomputed_tokens=sum(r.num_uncomputed for r in scheduler.waiting + scheduler.running),
            blocks=self.pool.counts(),
        )

    def check_integrity(self) -> None:
        """Raises block_pool.IntegrityError unless requests and pool agree on every block."""
        self.pool.check_integrity([block for request in self.requests.values() for block in request.blocks])

    def _known(self, request_id: str) -> Request:
        request = self.requests.get(request_id)
        if request is None:
            raise UnknownRequest(f"request {request_id} is not here")
        return request

    def _forget_ended(self, outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            if self.requests[output.request_id].state is RequestState.FINISHED:
                del self.requests[output.request_id]

    def _check_fits(self, request: Request) -> None:
        longest = request.num_prompt + request.sampling.max_tokens
        if longest > self.model.max_model_len:
            raise RequestTooLong(
                f"prompt ({request.num_prompt}) and max_tokens ({request.sampling.max_tokens}) are {longest} tokens "
                f"together; the model's context is {self.model.max_model_len}"
            )
        capacity = self.cache.num_blocks * self.config.block_size
        if longest > capacity:
            raise RequestTooLong(
                f"prompt ({request.num_prompt}) and max_tokens ({request.sampling.max_tokens}) are {longest} tokens "
                f"together; this worker's KV cache holds {capacity}: raise engine.num_blocks or ask for fewer"
            )
