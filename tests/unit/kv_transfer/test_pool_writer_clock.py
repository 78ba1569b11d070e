"""Whose time an offer to the pool is measured by."""

from __future__ import annotations

import asyncio

from engine.engine_thread import EngineThread
from engine.request import RequestKind, RequestState
from kv_transfer.block_offer import BlockOffers
from kv_transfer.pool_node import PoolNode
from kv_transfer.pool_nodes import PoolNodes
from kv_transfer.pool_ring import PoolMember
from kv_transfer.pool_writer import PoolWriter
from tests.unit.kv_transfer.pair import Pair, make_request, transfer_config

NOW = 1e9  # far from the machine's own clock


async def test_an_offer_ends_by_the_clock_that_its_verdicts_go_by(pair: Pair) -> None:
    config, thread, awake = transfer_config(), pair.prefill.thread, list[bool]()
    offers = BlockOffers(pair.prefill.engine.pool, config.lease_s, awake.append)
    nodes = PoolNodes(pair.prefill.info, _no_node, {}, config)
    writer = PoolWriter(nodes, thread, offers, "P", config, clock=lambda: NOW)
    await writer.offer(await _computed_keys(pair, thread), ())
    await asyncio.wrap_future(thread.call(lambda _: offers.advance(NOW + config.lease_s - 1)))
    assert awake == [True]
    await asyncio.wrap_future(thread.call(lambda _: offers.advance(NOW + config.lease_s + 1)))
    assert awake == [True, False]


async def _computed_keys(pair: Pair, thread: EngineThread) -> list[bytes]:
    request = make_request("p", list(range(97, 109)), RequestKind.PREFILL)
    await asyncio.wrap_future(thread.call(lambda engine: engine.add(request)))
    await pair.until(lambda: request.state is RequestState.HELD)
    return request.block_hashes


def _no_node(member: PoolMember) -> PoolNode:
    raise AssertionError("nothing is offered to a pool without nodes")
