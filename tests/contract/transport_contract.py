"""What every transport must do. A test class inherits it, and its file says in `make_transport` which one it is."""

from __future__ import annotations

import pytest
import torch

from kv_transfer.block_part import WHOLE, BlockPart, head_parts, layer_part
from kv_transfer.transport import TransferFailed
from tests.contract.ends import LAYOUT, NUM_BLOCKS, WAIT_S, End, Ends


class TransportContract(Ends):
    @pytest.fixture
    def connected(self, source: End, reader: End) -> End:
        source.transport.keep_awake(True)
        source.settle()
        reader.connect(source).result(WAIT_S)
        return reader

    def test_blocks_arrive_side_by_side_in_the_order_asked(self, source: End, connected: End) -> None:
        slot = connected.slot(1)
        connected.transport.read(source.incarnation, [5, 2, 9], slot).result(WAIT_S)
        arrived = slot.memory[: 3 * LAYOUT.block_bytes].view(3, -1)
        assert arrived.cpu().equal(source.cache.as_bytes()[[5, 2, 9]].cpu())

    @pytest.mark.parametrize(
        "part", [layer_part(range(1), 2, LAYOUT.block_bytes), layer_part(range(1, 2), 2, LAYOUT.block_bytes)], ids=str
    )
    def test_a_layer_range_of_blocks_arrives_side_by_side(self, source: End, connected: End, part: BlockPart) -> None:
        check_part_arrives(source, connected, [5, 6, 2], part)

    def test_every_head_range_can_be_read(self, source: End, connected: End) -> None:
        for part in head_parts(LAYOUT, range(1, 2)):
            check_part_arrives(source, connected, [9, 1], part)

    def test_more_blocks_fit_into_a_slot_when_only_a_part_of_each_is_read(self, source: End, connected: End) -> None:
        part = layer_part(range(1), 2, LAYOUT.block_bytes)
        num_blocks = connected.ring.blocks_in_slot(part)
        assert num_blocks == 2 * connected.ring.blocks_per_slot
        check_part_arrives(source, connected, list(range(num_blocks)), part)

    @pytest.mark.parametrize("part", [BlockPart(-4), BlockPart(4, 4), BlockPart(0, LAYOUT.block_bytes + 4)], ids=str)
    def test_bytes_that_a_block_does_not_have_fail(self, source: End, connected: End, part: BlockPart) -> None:
        with pytest.raises(TransferFailed, match="no part of a block"):
            connected.transport.read(source.incarnation, [1], connected.slot(), part=part).result(WAIT_S)

    def test_more_than_a_slot_holds_fails(self, source: End, connected: End) -> None:
        too_many = list(range(connected.ring.blocks_per_slot + 1))
        with pytest.raises(TransferFailed, match="slot"):
            connected.transport.read(source.incarnation, too_many, connected.slot(0)).result(WAIT_S)

    @pytest.mark.parametrize("blocks", [[12, 13, 14, 15], [0, 1, 2], [7, 3, 4], [1, 0]], ids=str)
    def test_neighbouring_blocks_arrive_as_any_others(self, source: End, connected: End, blocks: list[int]) -> None:
        check_part_arrives(source, connected, blocks, WHOLE)

    def test_a_read_touches_nothing_else(self, source: End, connected: End) -> None:
        connected.ring.memory.fill_(77)
        connected.settle()
        cache = connected.cache.tensor.clone()
        connected.transport.read(source.incarnation, [5], connected.slot(1)).result(WAIT_S)
        assert bool((connected.ring.memory[0] == 77).all())
        assert bool((connected.ring.memory[1, LAYOUT.block_bytes :] == 77).all())
        assert connected.cache.tensor.equal(cache)

    def test_a_read_sees_what_the_source_holds_when_it_runs(self, source: End, connected: End) -> None:
        connected.transport.read(source.incarnation, [3], connected.slot()).result(WAIT_S)
        source.cache.as_bytes()[3] = 99
        source.settle()
        connected.transport.read(source.incarnation, [3], connected.slot()).result(WAIT_S)
        assert bool((connected.slot().memory[: LAYOUT.block_bytes] == 99).all())

    def test_many_reads_may_be_open_at_once(self, source: End, connected: End) -> None:
        reads = [connected.transport.read(source.incarnation, [i], connected.slot(i % 2)) for i in range(NUM_BLOCKS)]
        for read in reads:
            read.result(WAIT_S)

    def test_reads_may_end_in_any_order(self, source: End, connected: End) -> None:
        orders = [3.0, 1.0, 2.0, 5.0, 4.0]
        reads = [
            connected.transport.read(source.incarnation, [i], connected.slot(0), order)
            for i, order in enumerate(orders)
        ]
        last = connected.transport.read(source.incarnation, [9], connected.slot(1), 0.0)
        for read in [*reads, last]:
            read.result(WAIT_S)
        assert int(connected.slot(1).memory[0]) == 10

    def test_a_read_cannot_be_taken_back(self, source: End, connected: End) -> None:
        read = connected.transport.read(source.incarnation, [5, 6], connected.slot())
        assert not read.cancel()
        read.result(WAIT_S)
        assert not read.cancel()
        connected.transport.read(source.incarnation, [7], connected.slot(1)).result(WAIT_S)
        assert [int(connected.slot(i).memory[0]) for i in range(2)] == [6, 8]

    def test_connecting_twice_is_connecting_once(self, source: End, connected: End) -> None:
        connected.connect(source).result(WAIT_S)
        connected.transport.read(source.incarnation, [1], connected.slot()).result(WAIT_S)

    def test_a_read_from_a_stranger_fails(self, reader: End) -> None:
        with pytest.raises(TransferFailed, match="stranger"):
            reader.transport.read("stranger", [1], reader.slot()).result(WAIT_S)

    def test_a_forgotten_peer_can_be_connected_again(self, source: End, connected: End) -> None:
        connected.transport.read(source.incarnation, [1], connected.slot()).result(WAIT_S)
        connected.transport.forget(source.incarnation)
        with pytest.raises(TransferFailed, match="not connected"):
            connected.transport.read(source.incarnation, [1], connected.slot()).result(WAIT_S)
        connected.connect(source).result(WAIT_S)
        connected.transport.read(source.incarnation, [4], connected.slot()).result(WAIT_S)
        assert int(connected.slot().memory[0]) == 5

    def test_a_block_that_does_not_exist_fails(self, source: End, connected: End) -> None:
        with pytest.raises(TransferFailed, match="no blocks"):
            connected.transport.read(source.incarnation, [NUM_BLOCKS], connected.slot()).result(WAIT_S)

    def test_nothing_is_accepted_after_closing(self, source: End, connected: End) -> None:
        connected.transport.close()
        with pytest.raises(TransferFailed, match="closed"):
            connected.transport.read(source.incarnation, [1], connected.slot()).result(WAIT_S)
        with pytest.raises(TransferFailed, match="closed"):
            connected.connect(source).result(WAIT_S)


def check_part_arrives(source: End, reader: End, blocks: list[int], part: BlockPart) -> None:
    rows = source.cache.as_bytes()
    rows[:] = torch.randint(256, rows.shape, dtype=torch.uint8)
    reader.ring.memory.fill_(77)
    source.settle()
    reader.settle()
    slot, wanted = reader.slot(1), part.within(LAYOUT.block_bytes)
    reader.transport.read(source.incarnation, blocks, slot, part=part).result(WAIT_S)
    num_bytes = len(blocks) * len(wanted)
    arrived = slot.memory[:num_bytes].view(len(blocks), -1)
    assert arrived.cpu().equal(rows[blocks, wanted.start : wanted.stop].cpu())
    assert bool((slot.memory[num_bytes:] == 77).all())
