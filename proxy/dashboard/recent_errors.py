"""The newest errors that clients got, those alike as one: a flood of refusals pushes nothing else out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from proxy.errors import ApiError
from proxy.openai.unsupported import shortened
from proxy.request.event_buffer import Route

CAPACITY = 30
MAX_MESSAGE = 300  # characters; a message may quote what the client wrote


@dataclass(frozen=True, slots=True)
class RecentError:
    """Errors of one code and reason at the same workers."""

    at: float  # Unix seconds, of the last, as the next three
    request_id: str
    message: str
    http_status: int
    code: str
    reason: str | None
    prefill_worker: str | None
    decode_worker: str | None
    count: int = 1


Key = tuple[str, str | None, str | None, str | None]


class RecentErrors:
    """Maintains at most `CAPACITY`, the one that came longest ago first."""

    def __init__(self) -> None:
        self._errors: dict[Key, RecentError] = {}

    def newest_first(self) -> list[RecentError]:
        return list(reversed(self._errors.values()))

    def add(self, at: float, request_id: str, error: ApiError, route: Route | None = None) -> None:
        prefill, decode = (route.prefill_worker, route.decode_worker) if route is not None else (None, None)
        key = (error.code.value, error.reason, prefill, decode)
        before = self._errors.pop(key, None)
        newest = RecentError(
            at=at,
            request_id=shortened(request_id),
            message=error.message[:MAX_MESSAGE],
            http_status=error.status.http,
            code=error.code.value,
            reason=error.reason,
            prefill_worker=prefill,
            decode_worker=decode,
        )
        self._errors[key] = newest if before is None else replace(newest, count=before.count + 1)
        if len(self._errors) > CAPACITY:
            del self._errors[next(iter(self._errors))]
