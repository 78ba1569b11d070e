"""What a client asks, in a body and beside it, as one `GenerationRequest`; whichever port it came through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from proxy.access.caller import Caller
from proxy.fronts.metadata import read_cache_salt, read_kv_mode, read_priority, read_slo, read_write_back
from proxy.request.generation_request import GenerationRequest
from proxy.request.sampling import Sampling
from proxy.text.prompt import Prompt


class Asked(Protocol):
    """A body: OpenAI's in JSON, or a message of `pdserve.v1.Inference`."""

    @property
    def model(self) -> str | None: ...

    @property
    def priority(self) -> int | None: ...

    @property
    def cache_salt(self) -> str | None: ...

    def to_prompts(self) -> tuple[Prompt, ...]:
        """Raises ApiError."""
        ...

    def sampling(self) -> Sampling:
        """Raises ApiError."""
        ...


def generation_request(
    asked: Asked, headers: Mapping[str, str], caller: Caller, request_id: str, timeout_s: float | None = None
) -> GenerationRequest:
    """Raises ApiError."""
    return GenerationRequest(
        asked.model,
        request_id,
        asked.to_prompts(),
        asked.sampling(),
        timeout_s,
        priority=read_priority(headers, asked.priority),
        cache_salt=read_cache_salt(caller.tenant, asked.cache_salt),
        kv_mode=read_kv_mode(headers),
        writes_back=read_write_back(headers),
        caller=caller,
        slo=read_slo(headers),
        traceparent=headers.get("traceparent", ""),
    )
