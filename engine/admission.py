"""What an engine refuses before it queues it: a request that could never end here, or that would fail a whole batch."""

from __future__ import annotations

import math

from engine.errors import RequestInvalid, RequestTooLong
from engine.request import Request, RequestKind, SamplingParams

MAX_PENALTY = 2.0  # either way
MAX_REPETITION_PENALTY = 2.0
MAX_BIAS = 100.0  # either way
MAX_LOGPROBS = 20


def check_request(request: Request, vocab_size: int, max_model_len: int, capacity: int) -> None:
    """Raises RequestInvalid, naming the field and the limit. `capacity`: tokens that the KV cache holds."""
    if not request.num_prompt:
        raise RequestInvalid("prompt_ids is empty: a request has one token at least")
    beyond = next((token for token in request.token_ids if not 0 <= token < vocab_size), None)
    if beyond is not None:
        raise RequestInvalid(f"token id {beyond} is not in the vocabulary of {vocab_size}")
    _check_length(request.sampling, request.num_generated)
    _check_sampling(request.sampling)
    _check_token_ids(request.sampling, vocab_size)
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


def _check_length(sampling: SamplingParams, num_generated: int) -> None:
    if sampling.max_tokens <= num_generated:
        raise RequestInvalid(f"max_tokens ({sampling.max_tokens}) leaves nothing to generate after {num_generated}")
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        raise RequestInvalid(
            f"min_tokens ({sampling.min_tokens}) is not between 0 and max_tokens ({sampling.max_tokens})"
        )
    if sampling.min_tokens and sampling.grammar:
        raise RequestInvalid("min_tokens cannot be had with a grammar, which alone says where the text may end")


def _check_sampling(sampling: SamplingParams) -> None:
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise RequestInvalid(f"temperature ({sampling.temperature}) is not a number from 0 on")
    if sampling.top_k < 0:
        raise RequestInvalid(f"top_k ({sampling.top_k}) is below 0")
    if not 0 < sampling.repetition_penalty <= MAX_REPETITION_PENALTY:
        raise RequestInvalid(
            f"repetition_penalty ({sampling.repetition_penalty}) is not above 0 and up to {MAX_REPETITION_PENALTY:g}"
        )
    _check_range("top_p", sampling.top_p, 0, 1)
    _check_range("min_p", sampling.min_p, 0, 1)
    _check_range("presence_penalty", sampling.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    _check_range("frequency_penalty", sampling.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    if sampling.num_logprobs is not None:
        _check_range("num_logprobs", sampling.num_logprobs, 0, MAX_LOGPROBS)


def _check_token_ids(sampling: SamplingParams, vocab_size: int) -> None:
    for name, token_ids in (
        ("stop_token_ids", sampling.stop_token_ids),
        ("logit_bias", [token_id for token_id, _ in sampling.logit_bias]),
    ):
        beyond = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
        if beyond is not None:
            raise RequestInvalid(f"{name}: {beyond} is not in the vocabulary of {vocab_size}")
    for token_id, bias in sampling.logit_bias:
        _check_range(f"logit_bias of token {token_id}", bias, -MAX_BIAS, MAX_BIAS)
    if sampling.min_tokens and len(sampling.stop_token_ids) == vocab_size:
        raise RequestInvalid("min_tokens cannot be reached: stop_token_ids holds the whole vocabulary")


def _check_range(name: str, value: float, least: float, largest: float) -> None:
    if not least <= value <= largest:
        raise RequestInvalid(f"{name} ({value}) is not between {least:g} and {largest:g}")
