"""What a prompt went through on its prefill worker, once it is computed. Pure."""

from __future__ import annotations

from engine.request import Request
from telemetry.stage import Stage, Value


def prompt_stages(request: Request, attempt: int, computed_at: float) -> list[Stage]:
    """None of a prompt that needed no block here. With a pool what it computes is offered meanwhile, which counts."""
    if request.admitted_at is None:
        return []
    told: dict[str, Value] = {"pdserve.attempt": attempt, "pdserve.tokens": request.num_prompt + request.first_index}
    computed = {**told, "pdserve.cached_tokens": request.num_cached}
    return [
        Stage("prefill.queue", request.arrived_at, request.admitted_at, told),
        Stage("prefill.compute", request.admitted_at, computed_at, computed),
    ]
