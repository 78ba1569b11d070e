"""Changes logits as requests ask, before a token is chosen from them.

The order is vLLM's:

1. the log-probabilities that clients see are taken (`RawLogprobs`), before anything below;
2. `grammar`: tokens that it does not allow next get minus infinity;
3. `min_tokens`: until that many are generated, so do the stop tokens;
4. `logit_bias` is added;
5. `repetition_penalty`, then `frequency_penalty` and `presence_penalty` (`Penalties`);
6. greedy takes the best of these; a draw goes on with `temperature`, `min_p`, `top_k` and `top_p` (`choose_tokens`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.derived_state import DerivedStates
from engine.grammar import GrammarFailed, Grammars
from engine.penalties import Penalties
from engine.request import Request


class LogitProcessors:
    """Maintains what the processors derive from live requests: grammar matchers and token counts."""

    def __init__(self, grammars: Grammars) -> None:
        self._matchers = DerivedStates(grammars.matcher)
        self._penalties = Penalties()

    def apply(self, logits: Tensor, requests: Sequence[Request]) -> dict[int, str]:
        """Changes the rows in place, float32 `[num_requests, vocab_size]`; why some have no next token, by row."""
        failures = self._mask_by_grammar(logits, requests)
        _mask_stop_tokens(logits, requests)
        _add_bias(logits, requests)
        self._penalties.apply(logits, requests)
        return failures

    def _mask_by_grammar(self, logits: Tensor, requests: Sequence[Request]) -> dict[int, str]:
        failures, rows, masks = {}, [], []
        for i, request in enumerate(requests):
            if request.sampling.grammar:
                try:
                    masks.append(self._matchers.of(request).allowed(logits.shape[1]))
                    rows.append(i)
                except GrammarFailed as error:
                    failures[i] = str(error)
        if rows:
            forbidden = torch.from_numpy(~np.stack(masks)).to(logits.device)
            logits[rows] = logits[rows].masked_fill(forbidden, -torch.inf)
        return failures


def _mask_stop_tokens(logits: Tensor, requests: Sequence[Request]) -> None:
    rows: list[int] = []
    token_ids: list[int] = []
    for i, request in enumerate(requests):
        if request.num_generated < request.sampling.min_tokens:
            token_ids += request.sampling.stop_token_ids
            rows += [i] * len(request.sampling.stop_token_ids)
    if rows:
        at = torch.tensor([rows, token_ids], device=logits.device)
        logits[at[0], at[1]] = -torch.inf


def _add_bias(logits: Tensor, requests: Sequence[Request]) -> None:
    rows: list[int] = []
    token_ids: list[int] = []
    biases: list[float] = []
    for i, request in enumerate(requests):
        for token_id, bias in request.sampling.logit_bias:
            rows.append(i)
            token_ids.append(token_id)
            biases.append(bias)
    if rows:
        at = torch.tensor([rows, token_ids], device=logits.device)
        added = torch.tensor(biases, device=logits.device).nan_to_num(nan=0.0, neginf=-torch.inf)
        logits[at[0], at[1]] += added
