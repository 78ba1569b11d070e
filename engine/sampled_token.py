"""A token that was chosen, and how likely the model thought it: what a runner, a hand-off and a client all pass on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the model's own probabilities, before penalties, bias, masks and temperature."""

    logprob: float  # of the chosen token
    top_ids: tuple[int, ...] = ()  # the likeliest tokens, likeliest first
    top_logprobs: tuple[float, ...] = ()

    @classmethod
    def read_from(cls, source: Any) -> TokenLogprobs:
        """From an object with attributes of the same names, such as a protobuf message."""
        return cls(source.logprob, tuple(source.top_ids), tuple(source.top_logprobs))


@dataclass(frozen=True, slots=True)
class SampledToken:
    token_id: int
    logprobs: TokenLogprobs | None = None  # where `SamplingParams.num_logprobs` asks for them


@dataclass(frozen=True, slots=True)
class SamplingFailure:
    """Why one request of a batch has no next token. Its neighbours have theirs."""

    message: str
