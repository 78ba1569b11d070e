"""The protocol of two-sided transports, over communicators that a test can hold up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from kv_transfer.block_part import WHOLE, BlockPart
from kv_transfer.config import TransferConfig
from kv_transfer.read_end import MAX_ASKED
from kv_transfer.send_end import MAX_AHEAD
from kv_transfer.signalling import HEADER, Invitation, SendOrder
from kv_transfer.transport import TransferFailed
from kv_transfer.two_sided import TwoSidedTransport
from tests.contract.ends import LAYOUT, NUM_BLOCKS, WAIT_S, End, Ends, MakeTransport, NewEnd
from tests.contract.transport_contract import TransportContract
from tests.direct_signalling import DirectSignalling
from tests.pipe_communicator import PipeCommunicators, PipeNetwork

LATE_S = 0.05  # of each deadline here
QUICK = TransferConfig(transfer_timeout_s=LATE_S, handshake_timeout_s=LATE_S)


@pytest.fixture
def network() -> PipeNetwork:
    return PipeNetwork()


@pytest.fixture
def make_transport(network: PipeNetwork) -> MakeTransport:
    return over_pipes(network, TransferConfig())


@pytest.fixture(autouse=True)
def flows_in_the_end(network: PipeNetwork, new_end: NewEnd) -> Iterator[None]:
    yield
    network.flows.set()


class TestTheContract(TransportContract):
    pass


class TestAReader(Ends):
    @pytest.fixture
    def reader(self, new_end: NewEnd, network: PipeNetwork) -> End:
        return new_end("D", over_pipes(network, QUICK))

    def test_asks_again_when_an_answer_is_lost_and_is_sent_the_entry_once(
        self, source: End, reader: End, network: PipeNetwork
    ) -> None:
        reader.connect(source).result(WAIT_S)
        signalling_of(source).lose_answers = 1
        assert read(reader, source, [3]) == [4]
        assert [order.sequence for order in signalling_of(source).orders] == [0, 0]
        assert len(network.sent) == 2  # a header and its blocks
        assert read(reader, source, [4]) == [5]

    def test_is_sent_entries_in_the_order_of_their_numbers_however_the_orders_arrive(
        self, source: End, new_end: NewEnd, network: PipeNetwork
    ) -> None:
        reader = new_end("D")
        reader.connect(source).result(WAIT_S)
        signalling_of(source).hold_sends = True
        reads = [reader.transport.read("P", [i], reader.slot(i)) for i in range(MAX_ASKED)]
        signalling_of(source).let_go(last_first=True)
        for each in reads:
            each.result(WAIT_S)
        assert [int(reader.slot(i).memory[0]) for i in range(2)] == [1, 2]
        assert [HEADER.unpack(header)[1] for header in network.sent[::2]] == [0, 1]

    def test_asks_for_the_lowest_in_order_first_when_more_wait_than_it_asks_for(
        self, source: End, new_end: NewEnd, network: PipeNetwork
    ) -> None:
        reader = new_end("D")
        reader.connect(source).result(WAIT_S)
        network.flows.clear()
        reads = [reader.transport.read("P", [i], reader.slot(), order) for i, order in enumerate([9, 8, 3, 1, 2])]
        network.flows.set()
        for each in reads:
            each.result(WAIT_S)
        assert [order.blocks for order in signalling_of(source).orders] == [(0,), (1,), (3,), (4,), (2,)]

    def test_that_is_not_answered_ends_all_its_reads_and_starts_anew_with_the_next(
        self, source: End, reader: End
    ) -> None:
        reader.connect(source).result(WAIT_S)
        signalling_of(source).is_silent = True
        reads = [reader.transport.read("P", [i], reader.slot(i % 2)) for i in range(4)]
        for each in reads:
            with pytest.raises(TransferFailed, match="could not be asked for entry 0: no answer"):
                each.result(WAIT_S)
        signalling_of(source).is_silent = False
        assert read(reader, source, [7]) == [8]
        assert len(signalling_of(source).invitations) == 2

    def test_whose_source_stalls_ends_its_reads_in_time_and_no_late_byte_touches_their_slots(
        self, source: End, reader: End, network: PipeNetwork
    ) -> None:
        reader.connect(source).result(WAIT_S)
        network.flows.clear()
        reads = [reader.transport.read("P", [i], reader.slot(i)) for i in range(2)]
        for each in reads:
            with pytest.raises(TransferFailed, match=r"aborted: nothing came in 0\.05 s"):
                each.result(WAIT_S)
        reader.ring.memory.fill_(77)
        network.flows.set()
        assert read(reader, source, [7]) == [8]  # over another communicator
        assert bool((reader.slot(1).memory == 77).all())

    def test_does_not_believe_an_entry_whose_header_is_another(
        self, source: End, reader: End, network: PipeNetwork
    ) -> None:
        """Field report D11."""
        reader.connect(source).result(WAIT_S)
        reader.ring.memory.fill_(77)
        network.changes = 1
        with pytest.raises(TransferFailed, match="not entry 0 as it was agreed"):
            read(reader, source, [3])
        assert bool((reader.ring.memory == 77).all())
        assert read(reader, source, [3]) == [4]

    def test_cannot_connect_to_a_source_that_does_not_answer(self, source: End, reader: End) -> None:
        signalling_of(source).is_silent = True
        with pytest.raises(TransferFailed, match=r"no communicator with P: no answer in 0\.05 s"):
            reader.connect(source).result(WAIT_S)

    def test_cannot_connect_to_a_source_that_is_gone(self, source: End, reader: End) -> None:
        reader.connect(source).result(WAIT_S)
        signalling_of(source).is_gone = True
        with pytest.raises(TransferFailed, match="nobody is there"):
            read(reader, source, [3])
        with pytest.raises(TransferFailed, match="nobody is there"):
            reader.connect(source).result(WAIT_S)

    @pytest.mark.parametrize(
        ("metadata", "message"),
        [
            (b"nonsense", "cannot be read"),
            (b'{"incarnation": "P2", "num_blocks": 1, "block_bytes": 1024}', "is that of P2"),
            (b'{"incarnation": "P", "num_blocks": 1, "block_bytes": 7}', "a block has 7 bytes on P and 1024 here"),
        ],
    )
    def test_refuses_metadata_that_does_not_fit(self, source: End, reader: End, metadata: bytes, message: str) -> None:
        with pytest.raises(TransferFailed, match=message):
            reader.transport.connect("P", metadata, source.signalling).result(WAIT_S)

    def test_lets_go_of_a_communicator_that_it_did_not_use_for_long_and_meets_again(
        self, source: End, new_end: NewEnd, network: PipeNetwork
    ) -> None:
        reader = new_end("D", over_pipes(network, TransferConfig(idle_peer_s=0.02)))
        reader.connect(source).result(WAIT_S)
        (pipe,) = network.pipes.values()
        assert pipe.aborted.wait(WAIT_S)
        assert read(reader, source, [3]) == [4]
        assert len(network.pipes) == 2

    def test_reads_what_it_has_asked_for_before_it_forgets(
        self, source: End, new_end: NewEnd, network: PipeNetwork
    ) -> None:
        reader = new_end("D")
        reader.connect(source).result(WAIT_S)
        network.flows.clear()
        reads = [reader.transport.read("P", [i], reader.slot(i % 2)) for i in range(4)]
        reader.transport.forget("P")
        again = reader.connect(source)
        network.flows.set()
        for each in reads:
            each.result(WAIT_S)
        again.result(WAIT_S)
        assert read(reader, source, [9]) == [10]

    def test_reads_from_a_restarted_source_under_its_new_incarnation(
        self, source: End, reader: End, new_end: NewEnd
    ) -> None:
        reader.connect(source).result(WAIT_S)
        assert read(reader, source, [3]) == [4]
        source.transport.close()
        signalling_of(source).is_gone = True
        successor = new_end("P-2")
        with pytest.raises(TransferFailed):
            read(reader, source, [3])
        reader.connect(successor).result(WAIT_S)
        assert read(reader, successor, [5]) == [6]


class TestASource(Ends):
    @pytest.fixture
    def invitation(self) -> Invitation:
        return Invitation("pipe", bytes(range(16)), "D", "P", b"here")

    @pytest.fixture
    def sender(self, source: End, invitation: Invitation, network: PipeNetwork) -> TwoSidedTransport:
        """With a reader that has met it."""
        transport = sender_of(source)
        transport.join(invitation)
        network.pipe(invitation.communicator).arrived.wait(WAIT_S)
        return transport

    @pytest.fixture
    def order(self, invitation: Invitation) -> SendOrder:
        return SendOrder("pipe", invitation.communicator, 0, (3, 1), WHOLE)

    def test_agrees_as_often_as_it_is_asked_and_sends_once(
        self, sender: TwoSidedTransport, order: SendOrder, network: PipeNetwork
    ) -> None:
        for _ in range(3):
            sender.send(order)
        sender.send(replace(order, sequence=1))
        sender.close()
        assert [entry[0] for entry in network.sent[1::2]] == [4, 4]
        assert network.sent[0] == order.header(LAYOUT.block_bytes)

    def test_knows_only_communicators_that_it_was_asked_into(self, sender: TwoSidedTransport, order: SendOrder) -> None:
        with pytest.raises(TransferFailed, match="knows no communicator 07070707"):
            sender.send(replace(order, communicator=b"\7" * 16))

    def test_joins_again_what_it_has_joined(self, sender: TwoSidedTransport, invitation: Invitation) -> None:
        sender.join(invitation)
        with pytest.raises(TransferFailed, match="has 16 bytes, not 2"):
            sender.join(replace(invitation, communicator=b"no"))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"blocks": (NUM_BLOCKS,)}, "no blocks"),
            ({"blocks": (1,) * 17}, "more than P has"),
            ({"part": BlockPart(5, 5)}, "no part"),
            ({"sequence": MAX_AHEAD + 1}, "too far ahead"),
        ],
    )
    def test_refuses_what_it_could_not_send(
        self, sender: TwoSidedTransport, order: SendOrder, change: dict[str, object], message: str
    ) -> None:
        with pytest.raises(TransferFailed, match=message):
            sender.send(replace(order, **change))  # type: ignore[arg-type]

    def test_refuses_other_blocks_under_a_number_that_is_taken(
        self, sender: TwoSidedTransport, order: SendOrder
    ) -> None:
        ahead = replace(order, sequence=1)
        sender.send(ahead)
        sender.send(ahead)
        with pytest.raises(TransferFailed, match="with other blocks"):
            sender.send(replace(ahead, blocks=(2,)))

    def test_lets_a_readers_older_communicator_end_after_what_it_agreed_to(
        self, sender: TwoSidedTransport, order: SendOrder, invitation: Invitation, network: PipeNetwork
    ) -> None:
        network.flows.clear()
        sender.send(order)
        sender.join(replace(invitation, communicator=b"\7" * 16))
        sender.send(replace(order, sequence=1))
        network.flows.set()
        assert network.pipe(invitation.communicator).aborted.wait(WAIT_S)
        assert [HEADER.unpack(header)[1] for header in network.sent[::2]] == [0, 1]
        network.pipe(b"\7" * 16).arrived.wait(WAIT_S)

    def test_lets_go_of_a_communicator_that_nobody_used_for_long(
        self, new_end: NewEnd, invitation: Invitation, network: PipeNetwork
    ) -> None:
        source = new_end("P", over_pipes(network, TransferConfig(idle_peer_s=0.01)))
        sender_of(source).join(invitation)
        pipe = network.pipe(invitation.communicator)
        pipe.arrived.wait(WAIT_S)
        assert pipe.aborted.wait(WAIT_S)

    def test_that_is_met_by_nobody_gives_up(
        self, new_end: NewEnd, invitation: Invitation, order: SendOrder, network: PipeNetwork
    ) -> None:
        source = new_end("P", over_pipes(network, QUICK))
        sender_of(source).join(invitation)
        sender_of(source).send(order)
        for thread in threading.enumerate():
            if thread.name == "pipe-source":
                thread.join(WAIT_S)
        with pytest.raises(TransferFailed, match="knows no communicator"):
            sender_of(source).send(order)


def over_pipes(network: PipeNetwork, config: TransferConfig) -> MakeTransport:
    kind = PipeCommunicators(network)
    return lambda incarnation, cache, ring: TwoSidedTransport(incarnation, cache, kind, config)


def sender_of(end: End) -> TwoSidedTransport:
    assert isinstance(end.transport, TwoSidedTransport)
    return end.transport


def signalling_of(end: End) -> DirectSignalling:
    assert end.signalling is not None
    return end.signalling


def read(reader: End, source: End, blocks: list[int]) -> list[int]:
    """The first byte of each."""
    slot = reader.slot()
    future: Future[None] = reader.transport.read(source.incarnation, blocks, slot)
    future.result(WAIT_S)
    return [int(slot.memory[i * LAYOUT.block_bytes]) for i in range(len(blocks))]
