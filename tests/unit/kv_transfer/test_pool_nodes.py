"""A worker's links to pool nodes: one for each start of a node, for as long as it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kv_transfer.config import TransferConfig
from kv_transfer.messages import BlockRef, PeerInfo, Ticket
from kv_transfer.peer import PeerUnavailable
from kv_transfer.pool_messages import OfferSource
from kv_transfer.pool_nodes import PoolNodes
from kv_transfer.pool_ring import PoolMember
from tests.unit.kv_transfer.pair import transfer_config
from tests.unit.kv_transfer.pool_rig import compatibility, key

KEYS = [key(n) for n in range(32)]


class Node:
    """Refuses every connection, and counts."""

    def __init__(self, member: PoolMember) -> None:
        self.member = member
        self.num_handshakes = 0
        self.is_let_go = False

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        self.num_handshakes += 1
        raise PeerUnavailable("nobody is here")

    async def lookup(self, reader: Ticket, keys: Sequence[bytes]) -> list[BlockRef | None]:
        raise PeerUnavailable("nobody is here")

    async def commit(self, reader: Ticket, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        raise PeerUnavailable("nobody is here")

    async def close(self, reader: Ticket) -> None:
        raise PeerUnavailable("nobody is here")

    async def offer(self, source: OfferSource, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        raise PeerUnavailable("nobody is here")

    async def disconnect(self) -> None:
        self.is_let_go = True


class Rig:
    def __init__(self, config: TransferConfig | None = None) -> None:
        self.opened: list[Node] = []
        me = PeerInfo("d-1", compatibility())
        self.nodes = PoolNodes(me, self._open, {}, config or transfer_config())

    def _open(self, member: PoolMember) -> Node:
        self.opened.append(Node(member))
        return self.opened[-1]


def member(number: int, start: int = 1) -> PoolMember:
    return PoolMember(f"pool-{number}", f"pool-{number}-{start}", f"pool-{number}:{start}")


async def test_every_key_has_one_node_and_every_start_of_a_node_one_link() -> None:
    rig = Rig()
    for _ in range(2):
        spread = rig.nodes.spread([member(0), member(1)], KEYS)
        assert sorted(place for _, places in spread for place in places) == list(range(len(KEYS)))
    assert [node.member for node in rig.opened] == [member(0), member(1)]
    rig.nodes.spread([member(0), member(1, start=2)], KEYS)
    assert [node.member for node in rig.opened] == [member(0), member(1), member(1, start=2)]
    await rig.nodes.close()
    assert all(node.is_let_go for node in rig.opened)


async def test_without_a_node_no_key_has_one() -> None:
    assert Rig().nodes.spread([], KEYS) == []


async def test_a_node_that_cannot_be_reached_is_avoided_before_anybody_waited_for_it() -> None:
    rig = Rig()
    assert len(rig.nodes.spread([member(0)], KEYS)) == 1  # it is being connected to
    await asyncio.sleep(0.01)
    assert rig.nodes.spread([member(0)], KEYS) == []
    assert rig.opened[0].num_handshakes == 1
    await rig.nodes.close()


@pytest.mark.parametrize("is_used", [False, True])
async def test_a_link_that_nobody_uses_is_let_go_of(is_used: bool) -> None:
    rig = Rig(transfer_config(idle_peer_s=0.05))
    rig.nodes.spread([member(0)], KEYS)
    for _ in range(8):
        await asyncio.sleep(0.01)
        rig.nodes.spread([member(0), member(1)] if is_used else [member(1)], KEYS)
    await asyncio.sleep(0)
    assert rig.opened[0].is_let_go is not is_used
    await rig.nodes.close()
