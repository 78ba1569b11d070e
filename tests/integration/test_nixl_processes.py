"""What NIXL does between processes, as far as the safety of the hand-off rests on it."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress

import psutil
import pytest
import torch

from engine.kv_cache import KVLayout
from kv_transfer.nixl import NixlTransport
from kv_transfer.transport import TransferFailed
from tests.contract.ends import NUM_BLOCKS, WAIT_S, End, make_end
from tests.integration.child import Child

pytestmark = pytest.mark.integration
over_both = pytest.mark.parametrize("tls", [None, "tcp"], ids=["shared_memory", "tcp"])
NOT_YET_S = 0.2  # what has not happened by then waits for something
IDLE_S = 0.5
LAYOUT = KVLayout(num_layers=8, num_kv_heads=2, block_size=16, head_dim=64, dtype="float32")
MIB_LAYOUT = KVLayout(num_layers=16, num_kv_heads=4, block_size=32, head_dim=64, dtype="float32")  # 1 MiB a block


class Source:
    """A prefill worker as far as its transport goes; served in a child."""

    def __init__(
        self,
        incarnation: str,
        tls: str | None,
        layout: KVLayout = LAYOUT,
        awake: bool = True,
        net_devices: str | None = None,
    ) -> None:
        self.end = nixl_end(incarnation, tls, layout, net_devices)
        self.end.transport.keep_awake(awake)

    def metadata(self) -> bytes:
        return self.end.transport.metadata()

    def keep_awake(self, awake: bool) -> None:
        self.end.transport.keep_awake(awake)

    def cpu_s(self) -> float:
        return time.process_time()

    def listens_on(self) -> set[str]:
        connections = psutil.Process().net_connections()
        return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


class Reader(Source):
    """A decode worker, likewise."""

    def connect(self, incarnation: str, metadata: bytes) -> None:
        self.end.transport.connect(incarnation, metadata).result(WAIT_S)

    def read(self, incarnation: str, blocks: list[int]) -> list[int]:
        """The first byte of each."""
        slot = self.end.slot()
        self.end.transport.read(incarnation, blocks, slot).result(WAIT_S)
        return [int(slot.memory[i * self.end.cache.block_bytes]) for i in range(len(blocks))]

    def start_reading(self, incarnation: str) -> None:
        self.end.transport.read(incarnation, list(range(NUM_BLOCKS)), self.end.slot())

    def forget(self, incarnation: str) -> None:
        self.end.transport.forget(incarnation)

    def cut_connections(self) -> None:
        """As a network does that has dropped them."""
        for sock in tcp_sockets():
            with suppress(OSError):  # not connected
                sock.shutdown(socket.SHUT_RDWR)

    def tcp_bytes(self) -> int:
        """Received so far, over the connections that exist."""
        infos = [sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136) for sock in tcp_sockets()]
        return sum(struct.unpack_from("Q", info, 128)[0] for info in infos)  # tcpi_bytes_received


def tcp_sockets() -> Iterator[socket.socket]:
    """Of this process."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                yield sock


def nixl_end(incarnation: str, tls: str | None, layout: KVLayout = LAYOUT, net_devices: str | None = None) -> End:
    return make_end(
        incarnation,
        lambda name, cache, ring: NixlTransport(name, cache, ring, ucx_tls=tls, ucx_net_devices=net_devices),
        layout,
        blocks_per_slot=NUM_BLOCKS,
    )


@pytest.fixture
def new_reader() -> Iterator[Callable[..., End]]:
    """Of this process."""
    ends: list[End] = []

    def make(tls: str | None, layout: KVLayout = LAYOUT) -> End:
        ends.append(nixl_end("D", tls, layout))
        return ends[-1]

    yield make
    for end in ends:
        end.transport.close(1.0)


def connect(reader: End, source: Child, incarnation: str) -> None:
    reader.transport.connect(incarnation, source.call("metadata")).result(WAIT_S)


def ends_within(read: Future[None], timeout_s: float) -> bool:
    return bool(wait([read], timeout_s).done)


@over_both
def test_bytes_arrive_as_they_are(tls: str | None, new_reader: Callable[..., End]) -> None:
    with Child(Source, "P", tls) as source:
        reader = new_reader(tls)
        connect(reader, source, "P")
        reader.transport.read("P", list(range(NUM_BLOCKS)), reader.slot()).result(WAIT_S)
        arrived = reader.slot().memory[: NUM_BLOCKS * LAYOUT.block_bytes].view(NUM_BLOCKS, -1)
        assert arrived.equal(reader.cache.as_bytes())  # filled alike


@over_both
def test_the_first_read_waits_until_the_source_takes_part(tls: str | None, new_reader: Callable[..., End]) -> None:
    with Child(Source, "P", tls, LAYOUT, False) as source:
        reader = new_reader(tls)
        connect(reader, source, "P")
        read = reader.transport.read("P", [1], reader.slot())
        assert not ends_within(read, NOT_YET_S)
        source.call("keep_awake", True)
        read.result(WAIT_S)


@over_both
def test_an_idle_pair_burns_no_cpu(tls: str | None) -> None:
    with Child(Source, "P", tls) as source, Child(Reader, "D", tls, LAYOUT, False) as reader:
        reader.call("connect", "P", source.call("metadata"))
        reader.call("read", "P", [1])
        source.call("keep_awake", False)
        before = [source.call("cpu_s"), reader.call("cpu_s")]
        time.sleep(IDLE_S)
        used = [source.call("cpu_s") - before[0], reader.call("cpu_s") - before[1]]
        assert max(used) < 0.01 * IDLE_S, used  # polling takes 2 % at least


@over_both
def test_restricted_to_the_loopback_device_nothing_listens_elsewhere(tls: str | None) -> None:
    with Child(Source, "P", tls, LAYOUT, True, "lo") as source, Child(Reader, "D", tls, LAYOUT, True, "lo") as reader:
        reader.call("connect", "P", source.call("metadata"))
        before = reader.call("tcp_bytes")
        assert reader.call("read", "P", [3, 4]) == [4, 5]
        over_tcp = reader.call("tcp_bytes") - before
        assert (over_tcp >= 2 * LAYOUT.block_bytes) == (tls == "tcp")  # else shared memory carries them
        assert source.call("listens_on") == reader.call("listens_on") == {"127.0.0.1"}


async def test_reads_do_not_block_the_event_loop(new_reader: Callable[..., End]) -> None:
    with Child(Source, "P", None, MIB_LAYOUT) as source:
        reader = new_reader(None, MIB_LAYOUT)
        connect(reader, source, "P")
        blocks = list(range(NUM_BLOCKS))
        reads = [reader.transport.read("P", blocks, reader.slot(i % 2)) for i in range(40)]  # 640 MiB
        all_of_them = asyncio.gather(*map(asyncio.wrap_future, reads))
        num_turns = 0
        while not all_of_them.done():
            await asyncio.sleep(0)
            num_turns += 1
        all_of_them.result()
        assert num_turns > 100 * len(reads)  # so the loop runs while bytes are copied, not only in between


class TestAStoppedSource:
    def test_leaves_the_read_in_doubt_and_the_late_bytes_touch_its_slot_only(
        self, new_reader: Callable[..., End]
    ) -> None:
        with Child(Source, "P1", "tcp") as stopped, Child(Source, "P2", "tcp") as healthy:
            reader = new_reader("tcp")
            connect(reader, stopped, "P1")
            connect(reader, healthy, "P2")
            reader.transport.read("P1", [0], reader.slot(0)).result(WAIT_S)
            stopped.stop()
            in_doubt = reader.transport.read("P1", list(range(NUM_BLOCKS)), reader.slot(0))
            assert not ends_within(in_doubt, NOT_YET_S)
            reader.transport.read("P2", [7, 8], reader.slot(1)).result(WAIT_S)  # the others go on
            reader.ring.memory.fill_(77)
            cache = reader.cache.tensor.clone()
            stopped.resume()
            in_doubt.result(WAIT_S)
            size = NUM_BLOCKS * LAYOUT.block_bytes
            assert bool((reader.slot(0).memory[:size] != 77).all())
            assert bool((reader.slot(0).memory[size:] == 77).all())
            assert bool((reader.slot(1).memory == 77).all())
            assert reader.cache.tensor.equal(cache)
            reader.transport.read("P1", [3], reader.slot(0)).result(WAIT_S)  # and it is usable again

    def test_is_forgotten_only_after_its_last_read(self, new_reader: Callable[..., End]) -> None:
        with Child(Source, "P", "tcp") as source:
            reader = new_reader("tcp")
            metadata = source.call("metadata")
            connect(reader, source, "P")
            reader.transport.read("P", [0], reader.slot(0)).result(WAIT_S)
            source.stop()
            in_doubt = reader.transport.read("P", [1, 2], reader.slot(0))
            reader.transport.forget("P")
            again = reader.transport.connect("P", metadata)
            assert not ends_within(again, NOT_YET_S)
            source.resume()
            in_doubt.result(WAIT_S)
            again.result(WAIT_S)
            reader.transport.read("P", [5], reader.slot(1)).result(WAIT_S)
            assert int(reader.slot(1).memory[0]) == 6


class TestAKilledSource:
    @over_both
    def test_ends_reads_fast_and_its_next_incarnation_is_usable(
        self, tls: str | None, new_reader: Callable[..., End]
    ) -> None:
        reader = new_reader(tls)
        with Child(Source, "P1", tls) as source:
            connect(reader, source, "P1")
            reader.transport.read("P1", [0], reader.slot(0)).result(WAIT_S)
            if tls == "tcp":
                source.stop()
                in_flight = reader.transport.read("P1", list(range(NUM_BLOCKS)), reader.slot(0))
                assert not ends_within(in_flight, NOT_YET_S)
                source.kill()
                with pytest.raises(TransferFailed, match="DISCONNECT"):
                    in_flight.result(2.0)
        with pytest.raises(TransferFailed):
            reader.transport.read("P1", [0], reader.slot(0)).result(2.0)
        reader.transport.forget("P1")
        with Child(Source, "P2", tls) as source:
            connect(reader, source, "P2")
            reader.transport.read("P2", [4], reader.slot(0)).result(WAIT_S)
            assert int(reader.slot(0).memory[0]) == 5

    def test_does_not_hurt_reads_from_another(self, new_reader: Callable[..., End]) -> None:
        with Child(Source, "P1", "tcp") as doomed, Child(Source, "P2", "tcp") as healthy:
            reader = new_reader("tcp")
            connect(reader, doomed, "P1")
            connect(reader, healthy, "P2")
            for incarnation in ("P1", "P2"):
                reader.transport.read(incarnation, [0], reader.slot(0)).result(WAIT_S)
            doomed.kill()
            for block in range(NUM_BLOCKS):
                reader.transport.read("P2", [block], reader.slot(1)).result(WAIT_S)
                assert int(reader.slot(1).memory[0]) == block + 1


def test_a_connection_that_was_cut_while_idle_fails_one_read_and_can_be_made_again() -> None:
    """Field report D16."""
    with Child(Source, "P", "tcp") as source, Child(Reader, "D", "tcp") as reader:
        metadata = source.call("metadata")
        reader.call("connect", "P", metadata)
        assert reader.call("read", "P", [0]) == [1]
        for _ in range(3):
            reader.call("cut_connections")
            with pytest.raises(TransferFailed, match="DISCONNECT"):
                reader.call("read", "P", [1])
            reader.call("forget", "P")
            reader.call("connect", "P", metadata)
            assert reader.call("read", "P", [2, 3]) == [3, 4]
        assert source.alive


@over_both
def test_a_reader_killed_while_it_reads_leaves_the_source_serving(
    tls: str | None, new_reader: Callable[..., End]
) -> None:
    with Child(Source, "P", tls, MIB_LAYOUT) as source:
        metadata = source.call("metadata")
        with Child(Reader, "D1", tls, MIB_LAYOUT) as doomed:
            doomed.call("connect", "P", metadata)
            doomed.call("read", "P", [0])
            doomed.call("start_reading", "P")
            doomed.kill()
        reader = new_reader(tls, MIB_LAYOUT)
        connect(reader, source, "P")
        reader.transport.read("P", [2], reader.slot(0)).result(WAIT_S)
        assert source.alive
        assert torch.equal(reader.slot(0).memory[: MIB_LAYOUT.block_bytes], reader.cache.as_bytes()[2])


def test_closing_with_a_read_in_doubt_kills_nobody(new_reader: Callable[..., End]) -> None:
    """Not even the stopped peer, once it goes on: the agent is kept until the process ends."""
    with Child(Source, "P", "tcp") as source:
        reader = nixl_end("D", "tcp")
        connect(reader, source, "P")
        reader.transport.read("P", [0], reader.slot(0)).result(WAIT_S)
        source.stop()
        in_doubt = reader.transport.read("P", [1, 2], reader.slot(0))
        reader.transport.close(0.1)
        assert not in_doubt.done()
        del reader
        source.resume()
        another = new_reader("tcp")
        connect(another, source, "P")
        another.transport.read("P", [3], another.slot(0)).result(WAIT_S)
        assert int(another.slot(0).memory[0]) == 4
        assert source.alive
