"""The transport within one process, and the faults that it can be told to have."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from kv_transfer.local import LocalNetwork, LocalTransport
from kv_transfer.transport import TransferFailed
from tests.contract.ends import WAIT_S, End, MakeTransport
from tests.contract.transport_contract import TransportContract


@pytest.fixture
def make_transport() -> MakeTransport:
    network = LocalNetwork()
    return lambda incarnation, cache, ring: LocalTransport(incarnation, cache, network)


class TestLocalTransport(TransportContract):
    def test_a_peer_that_closed_can_no_longer_be_read(self, source: End, connected: End) -> None:
        source.transport.close()
        with pytest.raises(TransferFailed):
            connected.transport.read("P", [1], connected.slot()).result(WAIT_S)

    def test_the_next_read_can_be_made_to_fail(self, source: End, connected: End) -> None:
        assert isinstance(connected.transport, LocalTransport)
        connected.transport.pass_next()
        connected.transport.fail_next("cut")
        connected.transport.read("P", [1], connected.slot()).result(WAIT_S)
        with pytest.raises(TransferFailed, match="cut"):
            connected.transport.read("P", [1], connected.slot()).result(WAIT_S)
        connected.transport.read("P", [1], connected.slot()).result(WAIT_S)

    def test_of_reads_that_wait_the_lowest_in_order_goes_first(self, source: End, connected: End) -> None:
        assert isinstance(connected.transport, LocalTransport)
        done: list[float] = []

        def read(order: float) -> Future[None]:
            future = connected.transport.read("P", [1], connected.slot(), order)
            future.add_done_callback(lambda _: done.append(order))
            return future

        connected.transport.stall()
        reads = [read(order) for order in (3.0, 1.0, 2.0, 1.5)]
        connected.transport.resume()
        for future in reads:
            future.result(WAIT_S)
        assert done == [1.0, 1.5, 2.0, 3.0]

    def test_a_stalled_read_happens_late(self, source: End, connected: End) -> None:
        assert isinstance(connected.transport, LocalTransport)
        connected.transport.stall()
        read = connected.transport.read("P", [1], connected.slot())
        assert not read.done()
        source.cache.as_bytes()[1] = 99
        connected.transport.resume()
        read.result(WAIT_S)
        assert int(connected.slot().memory[0]) == 99
