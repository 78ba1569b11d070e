"""How much a tenant may have each minute: a bucket that fills steadily and holds one minute's worth. Pure.

What is asked may be paid for afterwards: a bucket may be overdrawn, and refuses until there is one in it again.
"""

from __future__ import annotations


class Allowance:
    """Maintains the balance, at most one minute's worth."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._balance = float(per_minute)
        self._at = now

    def wait_s(self, now: float) -> float:
        """0: something may be taken now."""
        balance = self._balance_at(now)
        return max(0.0, (1 - balance) * 60.0 / self.per_minute)

    def take(self, amount: int, now: float) -> None:
        self._balance = self._balance_at(now) - amount
        self._at = now

    def _balance_at(self, now: float) -> float:
        return min(float(self.per_minute), self._balance + (now - self._at) * self.per_minute / 60.0)
