"""What is left of a lease once it has ended, on P's side."""

from __future__ import annotations

from engine.request import RequestKind
from kv_transfer.config import TransferConfig
from kv_transfer.lease import LeaseTable
from kv_transfer.messages import ChunkReady, FailureReason, PrefillDone, SessionEvent
from kv_transfer.transfer_record import LeaseRecord
from tests.unit.kv_transfer.pair import make_engine, make_request, ticket

CONFIG = TransferConfig()


class Leases:
    """A lease table over an engine that is stepped by hand, and the leases that ended."""

    def __init__(self) -> None:
        self.engine = make_engine()
        self.ended: list[LeaseRecord] = []
        self.table = LeaseTable(self.engine, CONFIG, lambda _: None, self.ended.append)
        self.events: list[SessionEvent] = []

    def prefill(self) -> None:
        self.table.prefill(make_request("r", range(6), RequestKind.PREFILL), ticket(), now=1.0)

    def open(self, now: float) -> None:
        self.table.open(ticket(), 0, self.events.append, now)


def test_a_committed_lease_is_recorded_from_its_first_open_on() -> None:
    leases = Leases()
    leases.prefill()
    leases.open(now=2.0)
    leases.engine.step()
    leases.table.advance(3.0)
    leases.events.clear()
    leases.open(now=4.0)  # once more: its stream broke
    chunks = [event.tail if isinstance(event, PrefillDone) else event for event in leases.events]
    blocks = [ref for chunk in chunks if isinstance(chunk, ChunkReady) for ref in chunk.blocks]
    leases.table.commit(ticket(), blocks, now=5.0)
    assert leases.ended == [LeaseRecord("r", ticket(), 2.0, 5.0, None)]


def test_a_lease_that_ran_out_is_recorded_with_the_reason() -> None:
    leases = Leases()
    leases.prefill()
    leases.open(now=2.0)
    leases.table.advance(2.0 + CONFIG.lease_s)
    assert [(lease.request_id, lease.failure) for lease in leases.ended] == [("r", FailureReason.LEASE_EXPIRED)]


def test_an_open_whose_prefill_never_came_is_recorded_without_a_request() -> None:
    leases = Leases()
    leases.open(now=2.0)
    leases.table.advance(2.0 + CONFIG.open_timeout_s)
    assert [(lease.request_id, lease.opened_at) for lease in leases.ended] == [(None, 2.0)]


def test_a_prefill_that_nobody_opened_had_no_lease() -> None:
    leases = Leases()
    leases.prefill()
    leases.table.abort(ticket(), now=2.0)
    assert leases.ended == []
