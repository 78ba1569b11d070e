"""From the wire to the engine: a `TokenRequest` becomes an `engine.Request`."""

from __future__ import annotations

import itertools
import math
import time

from engine.errors import RequestInvalid
from engine.request import Request, RequestKind, SamplingParams
from rpc import worker_pb2


class RequestBuilder:
    """Maintains the number that makes every engine id unique, so that no late token is taken for a newer attempt's."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def __call__(self, wire: worker_pb2.TokenRequest, attempt: int, kind: RequestKind) -> Request:
        """Raises RequestInvalid for what the engine has no field for; the rest is the engine's to check."""
        if not 0 < wire.timeout_s < math.inf:
            raise RequestInvalid(f"timeout_s ({wire.timeout_s}) is not a number above 0")
        sampling = SamplingParams(
            max_tokens=wire.sampling.max_tokens,
            temperature=wire.sampling.temperature,
            top_p=wire.sampling.top_p,
            top_k=wire.sampling.top_k,
            seed=wire.sampling.seed,
            stop_token_ids=frozenset(wire.sampling.stop_token_ids),
            min_p=wire.sampling.min_p,
            presence_penalty=wire.sampling.presence_penalty,
            frequency_penalty=wire.sampling.frequency_penalty,
            repetition_penalty=wire.sampling.repetition_penalty,
            logit_bias=tuple(wire.sampling.logit_bias.items()),
            min_tokens=wire.sampling.min_tokens,
            num_logprobs=wire.sampling.num_logprobs if wire.sampling.HasField("num_logprobs") else None,
            grammar=wire.sampling.grammar,
        )
        return Request(
            request_id=f"{wire.request_id}#{attempt}.{next(self._numbers)}",
            token_ids=[*wire.prompt_ids, *wire.output_ids],
            num_prompt=len(wire.prompt_ids),
            sampling=sampling,
            kind=kind,
            first_index=len(wire.output_ids),
            priority=wire.priority,
            cache_salt=wire.cache_salt,
            arrived_at=time.monotonic(),
        )
