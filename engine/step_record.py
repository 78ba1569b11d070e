"""What one step was, as a small value that outlives it: who ran, for how many tokens, who came, gave way and ended.

A record holds request ids and numbers only, so that keeping many keeps no request, token or block alive.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.block_pool import BlockCounts
from engine.engine import EngineLoad, StepResult
from engine.swapping import Direction


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some tokens of one prompt, or of what a preempted request has to compute again."""

    request_id: str
    start: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Admission:
    """A request got its blocks; until then it had waited since `arrived_at`."""

    request_id: str
    arrived_at: float
    num_prompt: int
    num_cached: int  # tokens found in the prefix cache
    receives: bool  # a peer's KV fills the blocks


@dataclass(frozen=True, slots=True)
class Ending:
    request_id: str
    reason: str  # stop | length | failed


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Times are the monotonic clock's, in seconds; a step that computed nothing has no duration."""

    started_at: float
    duration_s: float
    chunks: tuple[Chunk, ...]
    decodes: tuple[str, ...]  # ids of the requests that computed one token and chose the next
    admissions: tuple[Admission, ...]
    swapped_out: tuple[str, ...]  # ids of preempted requests whose KV went to host memory
    dropped: tuple[str, ...]  # ids of preempted requests that are to be computed again
    endings: tuple[Ending, ...]
    num_blocks_swapped_out: int  # copied before the step was computed
    num_blocks_swapped_in: int
    num_running: int  # when the step was over, as all that follows
    num_waiting: int
    blocks: BlockCounts

    @property
    def ended_at(self) -> float:
        return self.started_at + self.duration_s


def step_record(result: StepResult, load: EngineLoad, now: float) -> StepRecord | None:
    """To be made right after the step, while its requests are as it left them. None when nothing happened."""
    if not (result.works or result.reserved or result.preempted or result.failed or result.unsampled):
        return None
    chunks, decodes, admissions = [], [], []
    for work in result.works:
        request = work.request
        if work.num_tokens == 1 and work.start >= request.num_prompt:
            decodes.append(request.request_id)
            continue
        chunks.append(Chunk(request.request_id, work.start, work.num_tokens))
        if work.start == request.num_cached:
            admissions.append(
                Admission(request.request_id, request.arrived_at, request.num_prompt, request.num_cached, False)
            )
    admissions += [Admission(r.request_id, r.arrived_at, r.num_prompt, r.num_cached, True) for r in result.reserved]
    endings = [Ending(t.request_id, t.finish_reason.value) for t in result.tokens if t.finish_reason is not None]
    endings += [Ending(request_id, "failed") for request_id, _ in (*result.failed, *result.unsampled)]
    return StepRecord(
        started_at=result.started_at if result.works else now,
        duration_s=result.duration_s if result.works else 0.0,
        chunks=tuple(chunks),
        decodes=tuple(decodes),
        admissions=tuple(admissions),
        swapped_out=tuple(p.request.request_id for p in result.preempted if p.swapped),
        dropped=tuple(p.request.request_id for p in result.preempted if not p.swapped),
        endings=tuple(endings),
        num_blocks_swapped_out=sum(len(s.blocks) for s in result.swaps if s.direction is Direction.OUT),
        num_blocks_swapped_in=sum(len(s.blocks) for s in result.swaps if s.direction is Direction.IN),
        num_running=load.num_open - load.num_waiting,
        num_waiting=load.num_waiting,
        blocks=load.blocks,
    )
