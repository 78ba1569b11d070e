"""Keys on the ring: every node has its share, and a node that comes or goes moves only that."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.pool_ring import PoolMember, PoolRing

NAMES = st.lists(st.integers(0, 40).map("pool-{}".format), min_size=1, max_size=6, unique=True)
KEYS = st.lists(st.binary(min_size=16, max_size=16), max_size=40)


def member(name: str, incarnation: str = "i") -> PoolMember:
    return PoolMember(name, incarnation, f"{name}:1")


@given(NAMES, KEYS)
def test_a_new_node_takes_keys_and_moves_none_between_the_others(names: list[str], keys: list[bytes]) -> None:
    smaller, larger = PoolRing(map(member, names)), PoolRing(map(member, [*names, "new"]))
    for key in keys:
        assert larger.owner(key) in (smaller.owner(key), member("new"))


@given(NAMES, KEYS)
def test_the_order_in_which_nodes_are_named_and_their_restarts_move_nothing(
    names: list[str], keys: list[bytes]
) -> None:
    ring = PoolRing(map(member, names))
    other = PoolRing(member(name, "restarted") for name in reversed(names))
    for key in keys:
        owner, later = ring.owner(key), other.owner(key)
        assert owner is not None
        assert later == member(owner.name, "restarted")


def test_every_node_has_about_its_share() -> None:
    keys = [random.Random(i).randbytes(16) for i in range(2000)]
    spread = PoolRing(member(f"pool-{i}") for i in range(4)).spread(keys)
    assert all(300 < len(places) < 750 for places in spread.values())
    assert sorted(place for places in spread.values() for place in places) == list(range(2000))


def test_without_nodes_no_key_has_an_owner() -> None:
    ring = PoolRing([])
    assert ring.owner(b"k" * 16) is None
    assert ring.spread([b"k" * 16]) == {}
