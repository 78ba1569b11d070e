"""Refusals that a front makes by itself, counted and logged like those of the service."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from proxy.errors import ApiError
from proxy.fronts.metadata import read_priority
from proxy.request.priority import NORMAL, Priority
from proxy.service import GenerationService


@contextlib.contextmanager
def counted(service: GenerationService, headers: Mapping[str, str], request_id: str) -> Iterator[Priority]:
    """Inside, an ApiError refuses the request, which has the class of priority that its headers name.

    Raises ApiError.
    """
    priority = NORMAL
    try:
        priority = read_priority(headers)
        yield priority
    except ApiError as error:
        service.count_refusal(request_id, error, priority)
        raise
