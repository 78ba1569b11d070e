"""How likely the model itself thought each token: log-softmax of its logits before anything changes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.request import SamplingParams
from engine.sampled_token import TokenLogprobs

LEAST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot carry


class RawLogprobs:
    """Maintains the log-probabilities of the rows that ask for them, as they were when it was made."""

    def __init__(self, logits: Tensor, params: Sequence[SamplingParams]) -> None:
        """`logits`: float32 `[num_rows, vocab_size]`."""
        self._counts = {i: row.num_logprobs for i, row in enumerate(params) if row.num_logprobs is not None}
        if self._counts:
            logprobs = logits[list(self._counts)].log_softmax(dim=-1)
            self._logprobs = logprobs.nan_to_num(nan=LEAST_LOGPROB, neginf=LEAST_LOGPROB)

    def of(self, tokens: Sequence[int]) -> dict[int, TokenLogprobs]:
        """By row, where asked for. `tokens`: the chosen one of every row."""
        if not self._counts:
            return {}
        token_ids = torch.tensor([[tokens[i]] for i in self._counts], device=self._logprobs.device)
        chosen: list[float] = self._logprobs.gather(1, token_ids).squeeze(1).tolist()
        top = self._logprobs.topk(min(max(self._counts.values()), self._logprobs.shape[1]))
        top_ids: list[list[int]] = top.indices.tolist()
        top_logprobs: list[list[float]] = top.values.tolist()
        return {
            row: TokenLogprobs(chosen[i], tuple(top_ids[i][:count]), tuple(top_logprobs[i][:count]))
            for i, (row, count) in enumerate(self._counts.items())
        }
