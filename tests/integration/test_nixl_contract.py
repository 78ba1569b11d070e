"""The NIXL transport keeps the contract of all transports, over shared memory and over TCP."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future

import pytest

from kv_transfer.nixl import NixlTransport
from kv_transfer.transport import TransferFailed
from tests.contract.ends import WAIT_S, End, Ends, MakeTransport, NewEnd
from tests.contract.transport_contract import TransportContract

pytestmark = pytest.mark.integration


@pytest.fixture(params=[None, "tcp"], ids=["shared_memory", "tcp"])
def make_transport(request: pytest.FixtureRequest) -> MakeTransport:
    return lambda incarnation, cache, ring: NixlTransport(incarnation, cache, ring, ucx_tls=request.param)


class TestNixlTransport(TransportContract):
    def test_metadata_that_cannot_be_read_is_refused(self, reader: End) -> None:
        with pytest.raises(TransferFailed, match="metadata"):
            reader.transport.connect("P", b"nonsense").result(WAIT_S)

    def test_the_metadata_of_another_incarnation_is_refused(self, source: End, reader: End) -> None:
        with pytest.raises(TransferFailed, match="metadata of P2"):
            reader.transport.connect("P2", source.transport.metadata()).result(WAIT_S)
        reader.transport.connect("P", source.transport.metadata()).result(WAIT_S)

    @pytest.mark.parametrize(
        "make_transport", [None], ids=["shared_memory"], indirect=True
    )  # there a read ends when it is posted
    def test_of_reads_that_wait_the_lowest_in_order_goes_first(self, source: End, reader: End) -> None:
        reader.transport.connect("P", source.transport.metadata()).result(WAIT_S)
        is_held, go_on = threading.Event(), threading.Event()
        done: list[float] = []

        def hold(_: Future[None]) -> None:
            is_held.set()
            go_on.wait(WAIT_S)

        def read(order: float) -> Future[None]:
            future = reader.transport.read("P", [1], reader.slot(1), order)
            future.add_done_callback(lambda _: done.append(order))
            return future

        reader.transport.read("P", [0], reader.slot()).add_done_callback(hold)  # in the transport's thread
        source.transport.keep_awake(True)  # now the read can end
        assert is_held.wait(WAIT_S)
        reads = [read(order) for order in (3.0, 1.0, 2.0)]
        go_on.set()
        for future in reads:
            future.result(WAIT_S)
        assert done == [1.0, 2.0, 3.0]

    def test_of_those_who_wait_for_a_connection_to_go_only_the_cancelled_are_dropped(
        self, source: End, reader: End
    ) -> None:
        metadata = source.transport.metadata()
        reader.transport.connect("P", metadata).result(WAIT_S)
        in_doubt = reader.transport.read("P", [1], reader.slot())  # the source takes no part yet
        reader.transport.forget("P")
        given_up = reader.transport.connect("P", metadata)
        catch_up(reader)
        assert given_up.cancel()
        left = weakref.ref(given_up)
        del given_up
        again = reader.transport.connect("P", metadata)
        catch_up(reader)
        assert left() is None
        assert not again.done()
        source.transport.keep_awake(True)
        in_doubt.result(WAIT_S)
        again.result(WAIT_S)


class TestATransportWhoseThreadFails(Ends):
    """Here because somebody else resolved the future of a read."""

    @pytest.fixture
    def failed(self) -> Future[str]:
        return Future()

    @pytest.fixture
    def reader(self, new_end: NewEnd, failed: Future[str]) -> End:
        tell = failed.set_result
        return new_end("D", lambda name, cache, ring: NixlTransport(name, cache, ring, ucx_tls="tcp", on_failed=tell))

    @pytest.mark.parametrize("make_transport", ["tcp"], indirect=True)
    def test_says_so_and_refuses_all_that_waits_but_reads_in_doubt(
        self, new_end: NewEnd, reader: End, failed: Future[str]
    ) -> None:
        source, silent = new_end("P"), new_end("silent")
        for end in (source, silent):
            reader.transport.connect(end.incarnation, end.transport.metadata()).result(WAIT_S)
        in_doubt = reader.transport.read("silent", [1], reader.slot(0))
        reader.transport.forget("silent")
        again = reader.transport.connect("silent", silent.transport.metadata())
        read = reader.transport.read("P", [1], reader.slot(1))
        catch_up(reader)
        read.set_result(None)
        source.transport.keep_awake(True)

        assert "InvalidStateError" in failed.result(WAIT_S)
        with pytest.raises(TransferFailed, match="InvalidStateError"):
            again.result(WAIT_S)
        with pytest.raises(TransferFailed, match="InvalidStateError"):
            reader.transport.read("P", [1], reader.slot(1)).result(WAIT_S)
        assert not in_doubt.done()


def catch_up(end: End) -> None:
    """When this returns, the transport has run all commands that it had been given."""
    with pytest.raises(TransferFailed, match="not connected"):
        end.transport.read("nobody", [], end.slot()).result(WAIT_S)
