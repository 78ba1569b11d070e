"""The two-sided transport over Gloo, both ends in this process."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import psutil
import pytest
import torch

from kv_transfer.block_part import WHOLE
from kv_transfer.communicator import End as Side
from kv_transfer.config import TransferConfig
from kv_transfer.gloo import GlooCommunicators
from kv_transfer.signalling import Invitation, SendOrder
from kv_transfer.transport import TransferFailed
from kv_transfer.two_sided import TwoSidedTransport
from tests.contract.ends import LAYOUT, WAIT_S, End, MakeTransport
from tests.contract.transport_contract import TransportContract

IDLE_S = 0.3


@pytest.fixture
def make_transport() -> MakeTransport:
    return lambda incarnation, cache, ring: TwoSidedTransport(
        incarnation, cache, GlooCommunicators("127.0.0.1"), TransferConfig()
    )


@pytest.fixture
def others() -> set[str]:
    """Where this process listens already, for other tests."""
    return listening()


def listening() -> set[str]:
    connections = psutil.Process().net_connections("tcp")
    return {f"{c.laddr.ip}:{c.laddr.port}" for c in connections if c.status == psutil.CONN_LISTEN}


class TestGlooTransport(TransportContract):
    def test_listens_on_the_workers_own_address_only(self, others: set[str], source: End, connected: End) -> None:
        connected.transport.read("P", [1], connected.slot()).result(WAIT_S)
        assert {address.rpartition(":")[0] for address in listening() - others} == {"127.0.0.1"}

    def test_leaves_no_thread_and_no_connection_behind(self, source: End, reader: End) -> None:
        def use() -> None:
            reader.connect(source).result(WAIT_S)
            reader.transport.read("P", [1], reader.slot()).result(WAIT_S)
            reader.transport.forget("P")

        for _ in range(2):  # the store stays, and the source's end until it is asked anew
            use()
        threading.Event().wait(0.1)
        before = held()
        for _ in range(3):
            use()
        deadline = time.monotonic() + WAIT_S
        while held() > before:  # the last ones are still ending
            assert time.monotonic() < deadline, (held(), before)
            threading.Event().wait(0.01)

    def test_an_idle_pair_burns_no_cpu(self, source: End, connected: End) -> None:
        connected.transport.read("P", [1], connected.slot()).result(WAIT_S)
        before = time.process_time()
        threading.Event().wait(IDLE_S)
        assert time.process_time() - before < 0.01 * IDLE_S

    def test_a_reader_that_dies_while_it_is_sent_to_leaves_the_source_serving(self, source: End, reader: End) -> None:
        assert isinstance(source.transport, TwoSidedTransport)
        kind, name = GlooCommunicators("127.0.0.1"), bytes(16)
        place = kind.rendezvous()
        source.transport.join(Invitation("gloo", name, "doomed", "P", place))
        doomed = kind.meet(name, place, Side.READER, WAIT_S)
        order = SendOrder("gloo", name, 0, (1, 2), WHOLE)
        source.transport.send(order)
        doomed.abort()
        reader.connect(source).result(WAIT_S)
        reader.transport.read("P", [3], reader.slot()).result(WAIT_S)
        assert int(reader.slot().memory[0]) == 4

    def test_a_source_that_dies_in_the_middle_of_an_entry_ends_its_reads_at_once(
        self, source: End, reader: End
    ) -> None:
        doomed = DoomedSource(LAYOUT.block_bytes)
        reader.ring.memory.fill_(77)
        reader.transport.connect("P", source.transport.metadata(), doomed).result(WAIT_S)
        reads = [reader.transport.read("P", [n], reader.slot(n)) for n in range(2)]
        for each in reads:
            with pytest.raises(TransferFailed, match=r"gloo: Connection (closed|reset) by peer"):
                each.result(WAIT_S / 2)  # long before the deadline
        assert bool((reader.ring.memory == 77).all())


class DoomedSource:
    """Agrees to everything, sends the first entry's header, and is gone."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._threads = ThreadPoolExecutor(1)

    def join(self, invitation: Invitation) -> Future[None]:
        kind, name, place = GlooCommunicators("127.0.0.1"), invitation.communicator, invitation.rendezvous
        self._met = self._threads.submit(kind.meet, name, place, Side.SOURCE, WAIT_S)
        return _done()

    def send(self, order: SendOrder) -> Future[None]:
        if order.sequence == 0:
            self._threads.submit(self._send_header, order)
        return _done()

    def _send_header(self, order: SendOrder) -> None:
        communicator = self._met.result()
        communicator.send(torch.tensor(list(order.header(self._block_bytes)), dtype=torch.uint8), WAIT_S)
        communicator.abort()


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


@pytest.mark.parametrize("rendezvous", [b"nonsense", b'{"host": "127.0.0.1", "port": 1}'])
def test_a_place_where_nobody_is_cannot_be_met_at(rendezvous: bytes) -> None:
    with pytest.raises(TransferFailed, match="gloo"):
        GlooCommunicators("127.0.0.1").meet(bytes(16), rendezvous, Side.SOURCE, 0.1)


def held() -> tuple[int, int]:
    """Threads and open files of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
