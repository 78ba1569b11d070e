"""What each tenant may ask per minute, where its key says so: requests, and tokens of prompts and completions. Pure."""

from __future__ import annotations

from collections.abc import Callable

from proxy.access.caller import Caller
from proxy.admission.allowance import Allowance


class TenantRates:
    """Maintains an allowance for each tenant that has such a limit."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._requests: dict[str, Allowance] = {}
        self._tokens: dict[str, Allowance] = {}

    def wait_s(self, caller: Caller) -> float:
        """Until the tenant may ask again; 0: now."""
        now = self._clock()
        return max((allowance.wait_s(now) for allowance in self._of(caller)), default=0.0)

    def asked(self, caller: Caller) -> None:
        limit = caller.limits.requests_per_minute
        if limit is not None:
            _of_tenant(self._requests, caller.tenant, limit, self._clock()).take(1, self._clock())

    def used(self, caller: Caller, num_tokens: int) -> None:
        limit = caller.limits.tokens_per_minute
        if limit is not None:
            _of_tenant(self._tokens, caller.tenant, limit, self._clock()).take(num_tokens, self._clock())

    def _of(self, caller: Caller) -> list[Allowance]:
        limits, now = caller.limits, self._clock()
        kinds = ((self._requests, limits.requests_per_minute), (self._tokens, limits.tokens_per_minute))
        return [_of_tenant(kept, caller.tenant, limit, now) for kept, limit in kinds if limit is not None]


def _of_tenant(kept: dict[str, Allowance], tenant: str, per_minute: int, now: float) -> Allowance:
    """Its allowance; a new one when the limit is another."""
    found = kept.get(tenant)
    if found is None or found.per_minute != per_minute:
        found = kept[tenant] = Allowance(per_minute, now)
    return found
