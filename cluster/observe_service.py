"""A worker's `Observe`: the records that its engine and its hand-offs left, as messages.

Runs on the event loop, so it lets others go on after every few records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import grpc

from cluster.roles import ROLES
from cluster.worker_spec import WorkerSpec
from engine.record_log import RecordLog
from engine.step_record import StepRecord
from kv_transfer.handoff import HandoffResult
from kv_transfer.messages import Ticket
from kv_transfer.transfer_record import HandoffRecord, LeaseRecord
from rpc import observe_pb2, observe_pb2_grpc, worker_pb2

Record: TypeAlias = StepRecord | HandoffRecord | LeaseRecord
RECORDS_PER_MESSAGE = 128
Context = grpc.aio.ServicerContext[Any, Any]


class ObserveService(observe_pb2_grpc.ObserveServicer):
    """Translates; maintains nothing."""

    def __init__(self, spec: WorkerSpec, log: RecordLog[Record]) -> None:
        self._spec = spec
        self._log = log

    async def Read(  # noqa: N802  gRPC's name
        self, request: observe_pb2.ReadRequest, context: Context
    ) -> AsyncIterator[observe_pb2.Records]:
        first, records = self._log.since(request.since)
        end = first + len(records)
        yield observe_pb2.Records(
            source=observe_pb2.Source(
                name=self._spec.name,
                role=ROLES[self._spec.role],
                incarnation=self._spec.incarnation,
                unix_at_zero=time.time() - time.monotonic(),
                next=end,
                num_lost=max(0, first - request.since),
                capacity=self._log.capacity,
            )
        )
        if request.HasField("newest_s"):
            oldest = time.monotonic() - request.newest_s
            records = [record for record in records if record.ended_at >= oldest]
        for message in record_messages(records):
            yield message
            await asyncio.sleep(0)


def record_messages(records: Sequence[Record]) -> Iterator[observe_pb2.Records]:
    """Messages of at most RECORDS_PER_MESSAGE records each; every one names its requests anew."""
    for start in range(0, len(records), RECORDS_PER_MESSAGE):
        writer = RecordWriter()
        for record in records[start : start + RECORDS_PER_MESSAGE]:
            writer.add(record)
        yield writer.message


class RecordWriter:
    """Maintains one message: each request id is in it once."""

    def __init__(self) -> None:
        self.message = observe_pb2.Records()
        self._places: dict[str, int] = {}

    def add(self, record: Record) -> None:
        match record:
            case StepRecord():
                self._add_step(record)
            case HandoffRecord():
                self._add_handoff(record)
            case LeaseRecord():
                self._add_lease(record)

    def _add_step(self, step: StepRecord) -> None:
        place = self._place
        self.message.steps.add(
            started_at=step.started_at,
            duration_s=step.duration_s,
            chunks=[
                observe_pb2.Chunk(request=place(chunk.request_id), start=chunk.start, num_tokens=chunk.num_tokens)
                for chunk in step.chunks
            ],
            decodes=[place(request_id) for request_id in step.decodes],
            admissions=[
                observe_pb2.Admission(
                    request=place(admission.request_id),
                    arrived_at=admission.arrived_at,
                    num_prompt=admission.num_prompt,
                    num_cached=admission.num_cached,
                    receives=admission.receives,
                )
                for admission in step.admissions
            ],
            swapped_out=[place(request_id) for request_id in step.swapped_out],
            dropped=[place(request_id) for request_id in step.dropped],
            endings=[
                observe_pb2.Ending(request=place(ending.request_id), reason=ending.reason) for ending in step.endings
            ],
            num_blocks_swapped_out=step.num_blocks_swapped_out,
            num_blocks_swapped_in=step.num_blocks_swapped_in,
            num_running=step.num_running,
            num_waiting=step.num_waiting,
            **{f"num_blocks_{state}": count for state, count in asdict(step.blocks).items()},
        )

    def _add_handoff(self, handoff: HandoffRecord) -> None:
        outcome = handoff.outcome
        message = self.message.handoffs.add(
            request=self._place(handoff.request_id),
            ticket=_ticket(handoff.ticket),
            source=handoff.source,
            started_at=handoff.started_at,
            ended_at=handoff.ended_at,
        )
        if not isinstance(outcome, HandoffResult):
            message.failure = outcome.value
            return
        message.num_bytes = outcome.received_bytes
        message.num_tokens = outcome.received_tokens
        message.transport = outcome.transport
        for stage, seconds in outcome.stages.items():
            message.stages.add(name=stage, duration_s=seconds)
        for read in outcome.reads:
            message.reads.add(started_at=read.started_at, ended_at=read.ended_at)

    def _add_lease(self, lease: LeaseRecord) -> None:
        message = self.message.leases.add(
            ticket=_ticket(lease.ticket),
            opened_at=lease.opened_at,
            ended_at=lease.ended_at,
            failure=lease.failure.value if lease.failure is not None else "",
        )
        if lease.request_id is not None:
            message.request = self._place(lease.request_id)

    def _place(self, request_id: str) -> int:
        place = self._places.get(request_id)
        if place is None:
            place = self._places[request_id] = len(self._places)
            self.message.request_ids.append(request_id)
        return place


def _ticket(ticket: Ticket) -> worker_pb2.Ticket:
    return worker_pb2.Ticket(session=ticket.session, attempt=ticket.attempt)
