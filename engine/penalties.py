"""Presence, frequency and repetition penalties: a request's tokens, counted, and what the counts do to logits.

As in vLLM: presence and frequency look at what was generated, repetition at the prompt as well.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.derived_state import DerivedStates
from engine.request import Request, SamplingParams


class TokenCounts:
    """Maintains the distinct tokens of one request, and how often each was generated: 0 for the prompt's own."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._slots = {token_id: slot for slot, token_id in enumerate(dict.fromkeys(prompt_ids))}
        self._token_ids = array("q", self._slots)
        self._counts = array("f", bytes(4 * len(self._slots)))

    def take(self, token_id: int) -> None:
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._counts):
            self._token_ids.append(token_id)
            self._counts.append(0.0)
        self._counts[slot] += 1

    def token_ids(self) -> NDArray[np.int64]:
        return np.array(self._token_ids)

    def counts(self) -> NDArray[np.float32]:
        return np.array(self._counts)


class Penalties:
    """Maintains the counts of each live request that asks for a penalty."""

    def __init__(self) -> None:
        self._counts = DerivedStates(_begin)

    def apply(self, logits: Tensor, requests: Sequence[Request]) -> None:
        """Changes, in place, the logits of tokens that were seen; float32 `[num_requests, vocab_size]`."""
        rows = [i for i, request in enumerate(requests) if is_penalized(request.sampling)]
        if not rows:
            return
        counts = [self._counts.of(requests[i]) for i in rows]
        token_ids = [row.token_ids() for row in counts]
        sizes = [len(row) for row in token_ids]
        sampling = [requests[i].sampling for i in rows]

        def spread(values: Sequence[float]) -> Tensor:
            return torch.from_numpy(np.repeat(np.array(values, np.float32), sizes)).to(logits.device)

        at_rows = torch.from_numpy(np.repeat(np.array(rows), sizes)).to(logits.device)
        at_tokens = torch.from_numpy(np.concatenate(token_ids)).to(logits.device)
        times = torch.from_numpy(np.concatenate([row.counts() for row in counts])).to(logits.device)
        values = logits[at_rows, at_tokens]
        repetition = spread([row.repetition_penalty for row in sampling])
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= spread([row.frequency_penalty for row in sampling]) * times
        values -= spread([row.presence_penalty for row in sampling]) * (times > 0)
        logits[at_rows, at_tokens] = values.nan_to_num(nan=-torch.inf, neginf=-torch.inf)


def is_penalized(sampling: SamplingParams) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1)


def _begin(request: Request) -> TokenCounts:
    """Without a repetition penalty the prompt's tokens do not matter."""
    repeated = request.sampling.repetition_penalty != 1
    return TokenCounts(request.token_ids[: request.num_prompt] if repeated else ())
