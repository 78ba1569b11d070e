"""Records as two workers and a proxy would tell them: one request from P to D, in a few lines each."""

from __future__ import annotations

from rpc import observe_pb2, worker_pb2

ENGINE_ID_ON_P = "req-1.0abc#1.0"
ENGINE_ID_ON_D = "req-1.0abc#1.7"
KEY = "req-1.0abc"


def source(name: str, role: worker_pb2.Role = worker_pb2.ROLE_UNSPECIFIED, **fields: float) -> observe_pb2.Source:
    values = {"unix_at_zero": 1000.0, "capacity": 4096, **fields}
    return observe_pb2.Source(name=name, role=role, incarnation=f"{name}-x", **values)  # type: ignore[arg-type]


def prefill_records() -> observe_pb2.Records:
    """Arrives at 1 s, waits 0.5 s, is computed in two steps up to 3 s; its lease lasts from 1.25 to 3.5 s."""
    records = observe_pb2.Records(request_ids=[ENGINE_ID_ON_P])
    records.steps.add(
        started_at=1.5,
        duration_s=0.5,
        chunks=[observe_pb2.Chunk(request=0, start=0, num_tokens=256)],
        admissions=[observe_pb2.Admission(request=0, arrived_at=1.0, num_prompt=300)],
        num_running=1,
        num_blocks_used=19,
    )
    records.steps.add(
        started_at=2.0, duration_s=1.0, chunks=[observe_pb2.Chunk(request=0, start=256, num_tokens=44)], num_running=1
    )
    records.leases.add(request=0, opened_at=1.25, ended_at=3.5)
    return records


def decode_records(unix_at_zero_later_s: float = 0.0) -> observe_pb2.Records:
    """The hand-off lasts from 1.2 to 3.5 s, two decodes follow, preempted between them, and it ends at 6 s."""
    late = -unix_at_zero_later_s
    records = observe_pb2.Records(request_ids=[ENGINE_ID_ON_D])
    records.steps.add(
        started_at=1.1 + late, admissions=[observe_pb2.Admission(request=0, arrived_at=1.0 + late, receives=True)]
    )
    records.handoffs.add(
        request=0,
        source="prefill-0-x",
        started_at=1.2 + late,
        ended_at=3.5 + late,
        stages=[
            observe_pb2.Stage(name="handshake", duration_s=0.1),
            observe_pb2.Stage(name="wait_ready", duration_s=1.8),
            observe_pb2.Stage(name="transfer", duration_s=0.2),
            observe_pb2.Stage(name="validate", duration_s=0.1),
        ],
        reads=[
            observe_pb2.Span(started_at=2.1 + late, ended_at=2.3 + late),
            observe_pb2.Span(started_at=2.2 + late, ended_at=2.4 + late),
            observe_pb2.Span(started_at=3.1 + late, ended_at=3.2 + late),
        ],
        num_bytes=1 << 20,
        num_tokens=300,
        transport="nixl",
    )
    records.steps.add(started_at=4.0 + late, duration_s=0.5, decodes=[0], num_running=1)
    records.steps.add(started_at=5.0 + late, swapped_out=[0], num_blocks_swapped_out=19)
    records.steps.add(
        started_at=5.5 + late, duration_s=0.5, decodes=[0], endings=[observe_pb2.Ending(request=0, reason="length")]
    )
    return records


def proxy_records() -> observe_pb2.Records:
    records = observe_pb2.Records(request_ids=[KEY, "req-2.0def"])
    records.courses.add(
        request=0,
        admitted_at=0.5,
        dispatched_at=0.9,
        first_token_at=3.6,
        known_until=6.1,
        outcome="ok",
        prefill_worker="prefill-0",
        decode_worker="decode-0",
    )
    records.courses.add(request=1, admitted_at=2.0, known_until=6.5)
    return records
