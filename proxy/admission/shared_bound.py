"""A bound that tenants share: one alone may take it all, and however much some have taken, there is room for another.

Pure. The rule is that of shared buffers in switches: nobody takes more than is then left of twice the limit.
"""

from __future__ import annotations


class SharedBound:
    """Maintains what each tenant has. Together they never have more than twice the largest limit given."""

    def __init__(self) -> None:
        self.total = 0
        self._taken: dict[str, int] = {}

    def __getitem__(self, tenant: str) -> int:
        return self._taken.get(tenant, 0)

    def fits(self, tenant: str, amount: int, limit: int) -> bool:
        """Whether the tenant would then have no more than is left of twice the `limit`."""
        return self[tenant] + amount <= 2 * limit - (self.total + amount)

    def take(self, tenant: str, amount: int) -> None:
        self.total += amount
        self._taken[tenant] = self[tenant] + amount

    def give_back(self, tenant: str, amount: int) -> None:
        self.total -= amount
        left = self[tenant] - amount
        assert left >= 0
        if left:
            self._taken[tenant] = left
        else:
            self._taken.pop(tenant, None)
