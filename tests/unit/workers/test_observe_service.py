"""What a worker tells of itself: its steps and hand-offs, in messages of bounded size."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic, time

import grpc

from cluster.observe_service import RECORDS_PER_MESSAGE, ObserveService, Record
from cluster.worker_spec import WorkerSpec
from engine.block_pool import BlockCounts
from engine.record_log import RecordLog
from engine.step_record import Admission, Chunk, Ending, StepRecord
from kv_transfer.handoff import HandoffResult
from kv_transfer.messages import FailureReason, Ticket
from kv_transfer.transfer_record import HandoffRecord, LeaseRecord
from rpc import observe_pb2, observe_pb2_grpc, worker_pb2
from tests.unit.workers.pair import SHORT, Pair, token_request

SPEC = WorkerSpec(
    name="decode-0", role="decode", incarnation="decode-0-1", model_dir="/m", model_name="m", host="127.0.0.1"
)


def step(started_at: float = 1.0, decodes: tuple[str, ...] = ("r1",)) -> StepRecord:
    return StepRecord(
        started_at=started_at,
        duration_s=0.5,
        chunks=(Chunk("r0", 8, 16),),
        decodes=decodes,
        admissions=(Admission("r0", 0.25, 40, 8, False),),
        swapped_out=("r2",),
        dropped=("r3",),
        endings=(Ending("r1", "stop"),),
        num_blocks_swapped_out=3,
        num_blocks_swapped_in=0,
        num_running=2,
        num_waiting=1,
        blocks=BlockCounts(1, 2, 3, 4),
    )


@asynccontextmanager
async def served(log: RecordLog[Record]) -> AsyncIterator[observe_pb2_grpc.ObserveStub]:
    server = grpc.aio.server()
    observe_pb2_grpc.add_ObserveServicer_to_server(ObserveService(SPEC, log), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield observe_pb2_grpc.ObserveStub(channel)
    await server.stop(0)


async def read(
    stub: observe_pb2_grpc.ObserveStub, since: int = 0, newest_s: float | None = None
) -> list[observe_pb2.Records]:
    request = observe_pb2.ReadRequest(since=since, newest_s=newest_s)
    return [records async for records in stub.Read(request, timeout=10)]


async def test_a_step_arrives_whole_with_each_request_named_once() -> None:
    log = RecordLog[Record](4)
    log.append(step())
    async with served(log) as stub:
        first, records = await read(stub)
    assert (first.source.name, first.source.role, first.source.next) == ("decode-0", worker_pb2.ROLE_DECODE, 1)
    assert abs(first.source.unix_at_zero + monotonic() - time()) < 1
    assert sorted(records.request_ids) == ["r0", "r1", "r2", "r3"]
    (got,) = records.steps
    name = records.request_ids
    assert [(name[c.request], c.start, c.num_tokens) for c in got.chunks] == [("r0", 8, 16)]
    assert [name[place] for place in (*got.decodes, *got.swapped_out, *got.dropped)] == ["r1", "r2", "r3"]
    (admission,) = got.admissions
    assert (name[admission.request], admission.arrived_at, admission.num_cached) == ("r0", 0.25, 8)
    assert [(name[e.request], e.reason) for e in got.endings] == [("r1", "stop")]
    assert (got.num_running, got.num_waiting, got.num_blocks_swapped_out) == (2, 1, 3)
    assert [got.num_blocks_free, got.num_blocks_used, got.num_blocks_cached, got.num_blocks_leased] == [1, 2, 3, 4]


async def test_records_come_in_messages_of_bounded_size_and_in_order() -> None:
    log = RecordLog[Record](1000)
    for number in range(2 * RECORDS_PER_MESSAGE + 1):
        log.append(step(started_at=float(number)))
    async with served(log) as stub:
        _, *messages = await read(stub)
    assert [len(message.steps) for message in messages] == [RECORDS_PER_MESSAGE, RECORDS_PER_MESSAGE, 1]
    assert [s.started_at for m in messages for s in m.steps] == list(range(2 * RECORDS_PER_MESSAGE + 1))


async def test_a_reader_goes_on_where_it_was_and_learns_what_it_lost() -> None:
    log = RecordLog[Record](2)
    for number in range(5):
        log.append(step(started_at=float(number)))
    async with served(log) as stub:
        first, records = await read(stub, since=1)
        (again,) = await read(stub, since=first.source.next)
    assert (first.source.num_lost, first.source.next, first.source.capacity) == (2, 5, 2)
    assert [s.started_at for s in records.steps] == [3.0, 4.0]
    assert again.source.num_lost == 0


async def test_only_the_newest_are_told_when_so_asked() -> None:
    log = RecordLog[Record](8)
    log.append(step(started_at=monotonic() - 60))
    log.append(step(started_at=monotonic() - 1))
    async with served(log) as stub:
        _, records = await read(stub, newest_s=10)
        only_source = await read(stub, newest_s=0)
    assert len(records.steps) == 1
    assert len(only_source) == 1


async def test_both_sides_of_a_hand_off_are_told() -> None:
    ticket = Ticket(bytes(16), 1)
    log = RecordLog[Record](8)
    log.append(LeaseRecord("p", ticket, 1.0, 2.0, None))
    log.append(LeaseRecord(None, ticket, 1.0, 2.0, FailureReason.LEASE_EXPIRED))
    log.append(HandoffRecord("d", ticket, "prefill-0-1", 1.0, 2.0, FailureReason.STALE))
    async with served(log) as stub:
        _, records = await read(stub)
    first, second = records.leases
    assert records.request_ids[first.request] == "p"
    assert first.failure == ""
    assert not second.HasField("request")
    assert second.failure == "lease_expired"
    (handoff,) = records.handoffs
    assert (records.request_ids[handoff.request], handoff.failure, handoff.source) == ("d", "stale", "prefill-0-1")


async def test_a_hand_off_leaves_a_record_with_its_reads_and_stages() -> None:
    async with Pair() as pair:
        pair.start(token_request("r", list(range(20))))
        await pair.to_d.finished("r")
        (handoff,) = pair.handoffs
    result = handoff.outcome
    assert isinstance(result, HandoffResult)
    assert handoff.request_id.startswith("r#1.")
    assert list(result.stages) == ["handshake", "wait_ready", "transfer", "validate"]
    assert len(result.reads) >= 5
    assert all(handoff.started_at <= read.started_at <= read.ended_at <= handoff.ended_at for read in result.reads)
    assert sum(result.stages.values()) <= handoff.ended_at - handoff.started_at


async def test_a_hand_off_that_failed_leaves_a_record_with_the_reason() -> None:
    async with Pair(config=SHORT) as pair:
        ticket = worker_pb2.Ticket(session=os.urandom(16), attempt=1)
        pair.start_decode(token_request("r", [1, 2, 3]), ticket)  # nobody tells P
        await pair.to_d.event("handoff_failed")
        (handoff,) = pair.handoffs
    assert isinstance(handoff.outcome, FailureReason)
    assert handoff.ended_at > handoff.started_at
