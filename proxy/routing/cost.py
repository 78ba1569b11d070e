"""What it costs to run a prompt on a pair of workers, or on one: pure, in prompt tokens that a prefill worker computes.

A pair computes what the prefill worker lacks, behind what waits there, and moves what the decode worker lacks. A decode
worker that computes the prompt itself lacks less, perhaps, and needs no hand-off, but holds up the streams it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from proxy.routing.worker_view import WorkerView


@dataclass(frozen=True, slots=True)
class CostWeights:
    """What everything else costs, each in tokens to compute."""

    load: float = 0.2  # a token that waits before the prompt; below 1, since a cache missed now costs later too
    stream: float = 16.0  # a request that is on the decode worker already
    transfer: float = 0.1  # a token whose KV moves within a node
    remote_transfer: float = 0.3  # and between two
    handoff: float = 48.0  # agreeing on a hand-off, whatever its size
    local_prefill: float = 4.0  # a token computed on a decode worker, beside its streams


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who could run a prompt: a pair, a decode worker alone, or a prefill worker that puts it into the pool."""

    prefill: WorkerView | None
    decode: WorkerView | None
    is_remote: bool = False  # the two are on different nodes


class LocalReason(StrEnum):
    """Why a decode worker computes a prompt though a prefill worker could."""

    SHORT_PROMPT = "short_prompt"
    CACHED_ON_DECODE = "cached_on_decode"
    PREFILL_OVERLOADED = "prefill_overloaded"


def load_cost(candidate: Candidate, weights: CostWeights) -> float:
    """What waits there, whatever the prompt is."""
    prefill, decode = candidate.prefill, candidate.decode
    cost = 0.0
    if prefill is not None:
        cost += weights.load * prefill.num_queued_tokens
    if decode is not None:
        cost += weights.stream * decode.num_requests
        if prefill is None:
            cost += weights.load * weights.local_prefill * decode.num_queued_tokens
    return cost


def prompt_cost(candidate: Candidate, num_tokens: int, weights: CostWeights) -> float:
    """Computing and moving a prompt of `num_tokens` there."""
    prefill, decode = candidate.prefill, candidate.decode
    if prefill is None:
        return 0.0 if decode is None else weights.local_prefill * _uncached(decode, num_tokens)
    cost: float = _uncached(prefill, num_tokens)
    if decode is not None:
        a_token = weights.remote_transfer if candidate.is_remote else weights.transfer
        cost += weights.handoff + a_token * _uncached(decode, num_tokens)
    return cost


def total_cost(candidate: Candidate, num_tokens: int, weights: CostWeights) -> float:
    return prompt_cost(candidate, num_tokens, weights) + load_cost(candidate, weights)


def local_reason(pair: Candidate, local: Candidate, num_tokens: int, weights: CostWeights) -> LocalReason | None:
    """Why `local` is better than `pair`, or None where it is not. What waits counts in full: no cache is at stake."""
    weights = replace(weights, load=1.0)
    if total_cost(local, num_tokens, weights) >= total_cost(pair, num_tokens, weights):
        return None
    if prompt_cost(_cold(local), num_tokens, weights) < prompt_cost(_cold(pair), num_tokens, weights):
        return LocalReason.SHORT_PROMPT
    if prompt_cost(local, num_tokens, weights) < prompt_cost(pair, num_tokens, weights):
        return LocalReason.CACHED_ON_DECODE
    return LocalReason.PREFILL_OVERLOADED


def _cold(candidate: Candidate) -> Candidate:
    """With nothing cached."""
    prefill, decode = candidate.prefill, candidate.decode
    return replace(
        candidate,
        prefill=None if prefill is None else replace(prefill, num_cached_tokens=0),
        decode=None if decode is None else replace(decode, num_cached_tokens=0),
    )


def _uncached(view: WorkerView, num_tokens: int) -> int:
    return max(0, num_tokens - view.num_cached_tokens)
