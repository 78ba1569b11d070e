"""Requests of one kind that wait: tenants by their share, a tenant's own by priority and arrival. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from sortedcontainers import SortedKeyList, SortedList

from proxy.routing.fair_share import FairShare

T = TypeVar("T")
Key = tuple[float, int]  # the priority's order, and a number that grows with each entry
Turn = tuple[float, Key, str]  # the tenant's work so far, its first entry's key, its name


@dataclass(frozen=True, slots=True, eq=False)
class Place(Generic[T]):
    entry: T
    tenant: str
    is_batch: bool
    is_long: bool
    num_tokens: int
    key: Key


class Lane(Generic[T]):
    """Maintains each tenant's line, and whose turn it is of those that are not held."""

    def __init__(self, share: FairShare) -> None:
        self._share = share
        self._all: SortedKeyList[Place[T], Key] = SortedKeyList(key=lambda place: place.key)
        self._lines: dict[str, SortedKeyList[Place[T], Key]] = {}
        self._order: SortedList[Turn] = SortedList()
        self._turns: dict[str, Turn] = {}
        self._held: set[str] = set()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def first_turn(self) -> Turn | None:
        """None: nobody may go."""
        return self._order[0] if self._order else None

    @property
    def first(self) -> Place[T]:
        return self._lines[self._order[0][2]][0]

    @property
    def oldest_key(self) -> Key:
        """Of all, held or not."""
        return self._all[0].key

    def add(self, place: Place[T]) -> None:
        self._all.add(place)
        line = self._lines.setdefault(place.tenant, SortedKeyList(key=lambda place: place.key))
        line.add(place)
        self.reorder(place.tenant)

    def remove(self, place: Place[T]) -> None:
        self._all.remove(place)
        self._lines[place.tenant].remove(place)
        self.reorder(place.tenant)

    def hold(self, tenant: str, *, is_held: bool) -> None:
        """While held, it gets no turn."""
        if is_held:
            self._held.add(tenant)
        else:
            self._held.discard(tenant)
        self.reorder(tenant)

    def reorder(self, tenant: str) -> None:
        """To be called when the tenant's work has changed."""
        turn = self._turns.pop(tenant, None)
        if turn is not None:
            self._order.remove(turn)
        line = self._lines.get(tenant)
        if line is None:
            return
        if not line:
            del self._lines[tenant]
        elif tenant not in self._held:
            turn = self._turns[tenant] = (self._share.work_of(tenant), line[0].key, tenant)
            self._order.add(turn)
