"""What an engine refuses before it queues it: a request that could never end here, or that would fail a whole batch."""

from __future__ import annotations

import math

from engine.errors import RequestInvalid, RequestTooLong
from engine.request import Request, RequestKind, SamplingParams


def check_request(request: Request, vocab_size: int, max_model_len: int, capacity: int) -> None:
    """Raises RequestInvalid, naming the field and the limit. `capacity`: tokens that the KV cache holds."""
    if not request.num_prompt:
        raise RequestInvalid("prompt_ids is empty: a request has one token at least")
    beyond = next((token for token in request.token_ids if not 0 <= token < vocab_size), None)
    if beyond is not None:
        raise RequestInvalid(f"token id {beyond} is not in the vocabulary of {vocab_size}")
    _check_sampling(request.sampling, request.num_generated)
    if request.kind is RequestKind.PREFILL:
        longest, parts = request.num_tokens + 1, f"{request.num_tokens} tokens and the first new one"
    else:
        longest = request.num_prompt + request.sampling.max_tokens
        parts = f"prompt ({request.num_prompt}) and max_tokens ({request.sampling.max_tokens})"
    if longest > max_model_len:
        raise RequestTooLong(f"{parts} are {longest} tokens together; the model's context is {max_model_len}")
    if longest > capacity:
        raise RequestTooLong(
            f"{parts} are {longest} tokens together; this worker's KV cache holds {capacity}: "
            "raise engine.num_blocks or ask for fewer"
        )


def _check_sampling(sampling: SamplingParams, num_generated: int) -> None:
    if sampling.max_tokens <= num_generated:
        raise RequestInvalid(f"max_tokens ({sampling.max_tokens}) leaves nothing to generate after {num_generated}")
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise RequestInvalid(f"temperature ({sampling.temperature}) is not a number from 0 on")
    if not 0 <= sampling.top_p <= 1:
        raise RequestInvalid(f"top_p ({sampling.top_p}) is not between 0 and 1")
    if sampling.top_k < 0:
        raise RequestInvalid(f"top_k ({sampling.top_k}) is below 0")
