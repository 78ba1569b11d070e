"""How many workers each group of a pool may have, and which group the next worker gets: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NO_GROUP = ""  # of workers in a pool that has no groups


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The groups in the order in which they are filled, each with its limit; None: no limit."""

    groups: tuple[tuple[str, int | None], ...] = ((NO_GROUP, None),)

    @property
    def capacity(self) -> int | None:
        """Of all groups together; None: no limit."""
        limits = [most for _, most in self.groups if most is not None]
        return sum(limits) if len(limits) == len(self.groups) else None

    def has_room_for(self, num_workers: int) -> bool:
        return self.capacity is None or num_workers <= self.capacity

    def choose(self, taken: Mapping[str, int], preferred: str = NO_GROUP) -> str | None:
        """The preferred group if it is one of these and has room, else the first that has; None when all are full."""
        open_groups = [name for name, most in self.groups if most is None or taken.get(name, 0) < most]
        return preferred if preferred in open_groups else next(iter(open_groups), None)

    def rank(self, group: str) -> int:
        """Its place in the order; a group that is none of these comes last."""
        names = [name for name, _ in self.groups]
        return names.index(group) if group in names else len(names)
