"""A client's sampling values: checked, then resolved to what a worker is told.

`check` names the field and the limit; after it, no value can break a worker.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

from proxy.errors import invalid
from rpc import worker_pb2

MAX_TEMPERATURE = 2.0
GREEDY_BELOW = 1e-5  # a smaller temperature would overflow the logits, and means greedy anyway
MAX_TOP_K = 2**31 - 1
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024  # characters
MAX_STOP_TOKEN_IDS = 256


@dataclass(frozen=True, slots=True)
class Sampling:
    """As the client sent them; None where it sent nothing and zero would mean something else."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


def check(sampling: Sampling, vocab_size: int) -> None:
    """Raises ApiError for the first value that is out of its range."""
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise invalid("max_tokens", f"must be at least 1, not {sampling.max_tokens}")
    _check_range("temperature", sampling.temperature, MAX_TEMPERATURE)
    _check_range("top_p", sampling.top_p, 1.0)
    if sampling.top_k is not None and not -1 <= sampling.top_k <= MAX_TOP_K:
        raise invalid("top_k", f"must be -1 or 0 (every token) up to {MAX_TOP_K}, not {sampling.top_k}")
    if sampling.seed is not None and not -(2**63) <= sampling.seed < 2**64:
        raise invalid("seed", "must fit 64 bits")
    _check_stops(sampling, vocab_size)


def resolve(sampling: Sampling, eos_token_ids: frozenset[int], room: int) -> worker_pb2.SamplingParams:
    """What a worker is told. A missing seed is drawn here, once, so that every attempt has the same.

    `room`: tokens that the context still holds after the prompt. Raises ApiError when `max_tokens` is more than that.
    """
    if sampling.max_tokens is not None and sampling.max_tokens > room:
        raise invalid(
            "max_tokens",
            f"{sampling.max_tokens} do not fit: after this prompt the context holds {room} more tokens",
            "context_length_exceeded",
        )
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    top_p = 1.0 if sampling.top_p is None else sampling.top_p
    top_k = max(sampling.top_k or 0, 0)
    if top_p < GREEDY_BELOW:  # only the likeliest token is left
        top_p, top_k = 1.0, 1
    seed = secrets.randbits(64) if sampling.seed is None else sampling.seed % 2**64
    stop_ids = set(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos_token_ids)
    return worker_pb2.SamplingParams(
        max_tokens=sampling.max_tokens or room,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop_token_ids=sorted(stop_ids),
        repetition_penalty=1.0,
    )


def _check_range(name: str, value: float | None, largest: float) -> None:
    if value is not None and not (math.isfinite(value) and 0 <= value <= largest):
        raise invalid(name, f"must be from 0 to {largest:g}, not {value}")


def _check_stops(sampling: Sampling, vocab_size: int) -> None:
    if len(sampling.stop) > MAX_STOP_STRINGS:
        raise invalid("stop", f"{len(sampling.stop)} strings are too many: at most {MAX_STOP_STRINGS}")
    for stop in sampling.stop:
        if not 1 <= len(stop) <= MAX_STOP_LENGTH:
            raise invalid("stop", f"each string must have 1 to {MAX_STOP_LENGTH} characters, not {len(stop)}")
    if len(sampling.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise invalid("stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS}, not {len(sampling.stop_token_ids)}")
    for token_id in sampling.stop_token_ids:
        if not 0 <= token_id < vocab_size:
            raise invalid("stop_token_ids", f"{token_id} is not in the vocabulary of {vocab_size} tokens")
