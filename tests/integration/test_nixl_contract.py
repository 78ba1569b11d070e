"""The NIXL transport keeps the contract of all transports, over shared memory and over TCP."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kv_transfer.nixl import NixlTransport
from kv_transfer.transport import TransferFailed
from tests.transport_contract import WAIT_S, End, TransportContract, make_end

pytestmark = pytest.mark.integration
NewEnd = Callable[[str], End]


@pytest.fixture(params=[None, "tcp"], ids=["shared_memory", "tcp"])
def new_end(request: pytest.FixtureRequest) -> Iterator[NewEnd]:
    ends: list[End] = []

    def make(incarnation: str) -> End:
        ends.append(
            make_end(incarnation, lambda name, cache, ring: NixlTransport(name, cache, ring, ucx_tls=request.param))
        )
        return ends[-1]

    yield make
    for end in reversed(ends):
        end.transport.close()


@pytest.fixture
def source(new_end: NewEnd) -> End:
    return new_end("P")


@pytest.fixture
def reader(new_end: NewEnd) -> End:
    return new_end("D")


class TestNixlTransport(TransportContract):
    def test_metadata_that_cannot_be_read_is_refused(self, reader: End) -> None:
        with pytest.raises(TransferFailed, match="metadata"):
            reader.transport.connect("P", b"nonsense").result(WAIT_S)

    def test_the_metadata_of_another_incarnation_is_refused(self, source: End, reader: End) -> None:
        with pytest.raises(TransferFailed, match="metadata of P2"):
            reader.transport.connect("P2", source.transport.metadata()).result(WAIT_S)
        reader.transport.connect("P", source.transport.metadata()).result(WAIT_S)
