"""A body of OpenAI's form and what travels beside it, as one `GenerationRequest`; whichever port it came through."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.access.gate import current_caller
from proxy.fronts.metadata import read_cache_salt, read_kv_mode, read_priority, read_slo, read_write_back
from proxy.openai.api import ChatBody, CompletionBody
from proxy.request.generation_request import GenerationRequest


def generation_request(
    body: CompletionBody | ChatBody, headers: Mapping[str, str], request_id: str, timeout_s: float | None = None
) -> GenerationRequest:
    """Raises ApiError."""
    return GenerationRequest(
        body.model,
        request_id,
        body.to_prompts(),
        body.sampling(),
        timeout_s,
        priority=read_priority(headers, body.priority),
        cache_salt=read_cache_salt(current_caller().tenant, body.cache_salt),
        kv_mode=read_kv_mode(headers),
        writes_back=read_write_back(headers),
        caller=current_caller(),
        slo=read_slo(headers),
    )
