"""From a step's logits to its tokens: what requests ask for is applied, a token chosen, its log-probabilities told.

A request's token depends on its own logits, parameters and tokens only, never on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from engine.choice import choose_tokens
from engine.grammar import Grammars
from engine.logit_processors import LogitProcessors
from engine.logprobs import RawLogprobs
from engine.request import Request, SamplingParams
from engine.sampled_token import SampledToken, SamplingFailure

Choose = Callable[[Tensor, Sequence[SamplingParams], Sequence[int]], list[int]]


class Sampler:
    """Maintains what sampling derives from live requests; used by one thread."""

    def __init__(self, grammars: Grammars, choose: Choose = choose_tokens) -> None:
        self._processors = LogitProcessors(grammars)
        self._choose = choose

    def sample(self, logits: Tensor, requests: Sequence[Request]) -> list[SampledToken | SamplingFailure]:
        """The next token of each request, or why it has none.

        Changes `logits`, float32 `[num_requests, vocab_size]`, in the order that `logit_processors` tells.
        """
        params = [request.sampling for request in requests]
        raw = RawLogprobs(logits, params)
        failures = self._processors.apply(logits, requests)
        tokens = self._choose(logits, params, [request.num_tokens for request in requests])
        logprobs = raw.of(tokens)
        return [
            SamplingFailure(failures[row]) if row in failures else SampledToken(token, logprobs.get(row))
            for row, token in enumerate(tokens)
        ]
