"""One short generation before a worker is ready, so that no client pays for what happens only the first time.

Kernels are compiled, memory is touched, and a device that cannot compute is seen before it gets a request.
"""

from __future__ import annotations

from engine.engine import Engine
from engine.request import Request, SamplingParams

NUM_TOKENS = 2  # one of the prompt's step, one of a decode step
LONGEST_PROMPT = 8
REQUEST_ID = "warm-up"


class WarmUpError(Exception):
    """The first generation failed; the message says how."""


def warm_up(engine: Engine) -> None:
    """Generates in an engine that no thread runs yet, and leaves it idle. Raises WarmUpError."""
    context = min(engine.model.max_model_len, engine.capacity)
    num_prompt = max(1, min(LONGEST_PROMPT, context - NUM_TOKENS))
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
    engine.add(Request(REQUEST_ID, [0] * num_prompt, num_prompt, sampling, cache_salt=REQUEST_ID))
    while engine.requests:
        result = engine.step()
        for _, error in (*result.failed, *result.unsampled):
            raise WarmUpError(f"the model could not generate: {error}")
