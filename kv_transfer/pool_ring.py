"""Which node of the pool keeps which key: consistent hashing with virtual nodes, the same in every process.

A place on the ring hangs on the node's name only, so a restarted node has its old share, and a node that comes or goes
moves no key between two others.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NUM_PLACES = 64  # of each node: shares differ by a quarter or so


@dataclass(frozen=True, slots=True)
class PoolMember:
    """One start of one pool node."""

    name: str  # stable, as in `pool-0`
    incarnation: str
    address: str  # of its gRPC server, host:port


class PoolRing:
    """Immutable: another membership is another ring."""

    def __init__(self, members: Iterable[PoolMember], num_places: int = NUM_PLACES) -> None:
        self.members = tuple(sorted(members, key=lambda member: member.name))
        ring = sorted(
            ((place, member) for member in self.members for place in _places(member.name, num_places)),
            key=lambda entry: (entry[0], entry[1].name),
        )
        self._places = [place for place, _ in ring]
        self._owners = [member for _, member in ring]

    def owner(self, key: bytes) -> PoolMember | None:
        """The node that keeps `key`; None when there is no node."""
        if not self._places:
            return None
        return self._owners[bisect_right(self._places, _position(key)) % len(self._places)]

    def spread(self, keys: Sequence[bytes]) -> dict[PoolMember, list[int]]:
        """For each node that keeps any of them, the places of its keys in `keys`, in order."""
        spread: dict[PoolMember, list[int]] = {}
        for i, key in enumerate(keys):
            owner = self.owner(key)
            if owner is not None:
                spread.setdefault(owner, []).append(i)
        return spread


def _places(name: str, num_places: int) -> Iterable[int]:
    for i in range(num_places):
        yield _position(f"{name}/{i}".encode())


def _position(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, person=b"pdserve-ring").digest())
