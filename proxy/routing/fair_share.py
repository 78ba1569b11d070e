"""Whose turn it is: the tenant whose waiting requests have got the least work done. Pure.

The counters of virtual token counting (Sheng et al., OSDI 2024), with a floor that rises with all work done, so that
not even an endless row of new tenants keeps one waiting for ever.
"""

from __future__ import annotations

from collections import Counter

MOST_KEPT = 64  # tenants that do not wait and have had more than the floor, before they are looked through


class FairShare:
    """Maintains, while anybody waits, how much work was done for each tenant, or counts as if it had been."""

    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()
        self._work: dict[str, float] = {}
        self._floor = 0.0  # what a tenant that comes now counts as having had

    @property
    def tenants(self) -> tuple[str, ...]:
        """Those that wait."""
        return tuple(self._waiting)

    def work_of(self, tenant: str) -> float:
        if tenant in self._waiting:
            return self._work[tenant]
        return max(self._floor, self._work.get(tenant, 0.0))

    def join(self, tenant: str) -> None:
        """One more request of it waits. Who was away saves nothing up."""
        self._work[tenant] = self.work_of(tenant)
        self._waiting[tenant] += 1

    def leave(self, tenant: str) -> None:
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._forget()

    def charge(self, tenant: str, work: float) -> None:
        """It was done for the tenant. While nobody waits it was at nobody's cost."""
        if not self._waiting:
            return
        self._work[tenant] = self.work_of(tenant) + work
        self._floor += work / len(self._waiting)

    def _forget(self) -> None:
        if not self._waiting:
            self._work.clear()
            self._floor = 0.0
        elif len(self._work) > 2 * len(self._waiting) + MOST_KEPT:
            self._work = {t: work for t, work in self._work.items() if t in self._waiting or work > self._floor}
