"""When a request that came now would get its first token: what waits before it, at the rate seen, and a worker's part.

Pure. None where nothing is known; nobody is refused then.
"""

from __future__ import annotations

from proxy.admission.drain_rate import DrainRate

NEWEST = 0.1  # how much the latest request counts in the mean


class FirstTokenEstimate:
    """Maintains how long workers take lately from getting a request to its first token."""

    def __init__(self, drain: DrainRate) -> None:
        self._drain = drain
        self._at_worker_s: float | None = None

    def saw(self, at_worker_s: float) -> None:
        """A request got its first token so long after it was sent to a worker."""
        before = self._at_worker_s
        self._at_worker_s = at_worker_s if before is None else before + NEWEST * (at_worker_s - before)

    def wait_s(self, work_before: float, now: float) -> float | None:
        """Until a worker is sent the request; `work_before`: what goes before it."""
        rate = self._drain.per_second(now)
        if not rate:
            return None
        return work_before / rate

    def first_token_s(self, work_before: float, now: float) -> float | None:
        wait_s = self.wait_s(work_before, now)
        if wait_s is None or self._at_worker_s is None:
            return None
        return wait_s + self._at_worker_s
