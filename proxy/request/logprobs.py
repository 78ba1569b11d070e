"""How likely the model thought the tokens of a completion, as clients are told: finite numbers only.

Natural logarithms of the model's own probabilities, before penalties, bias, masks and temperature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rpc import worker_pb2

LOWEST = -9999.0  # stands for minus infinity, which JSON cannot say


@dataclass(frozen=True, slots=True)
class Logprob:
    token_id: int
    logprob: float  # from LOWEST to 0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One token of a completion beside those that were likeliest in its place."""

    chosen: Logprob
    top: tuple[Logprob, ...]  # likeliest first; the chosen one need not be among them
    text_offset: int  # characters of the completion that were whole before this token


def read_logprobs(token_id: int, wire: worker_pb2.TokenLogprobs, text_offset: int) -> TokenLogprobs:
    top = zip(wire.top_ids, wire.top_logprobs, strict=True)
    return TokenLogprobs(
        chosen=Logprob(token_id, _finite(wire.logprob)),
        top=tuple(Logprob(top_id, _finite(value)) for top_id, value in top),
        text_offset=text_offset,
    )


def _finite(value: float) -> float:
    return LOWEST if math.isnan(value) else min(max(value, LOWEST), 0.0)
