"""A step's record: who ran and for how much, who came, gave way and ended."""

from __future__ import annotations

import gc
import weakref

import pytest

from engine.engine import Engine, EngineLoad, StepResult
from engine.step_record import Admission, Chunk, StepRecord, step_record
from tests.unit.engine.conftest import RequestFactory, make_engine

NOW = 123.0


def records_of(engine: Engine, max_steps: int = 200) -> list[StepRecord]:
    """Of all steps, until nothing moves."""
    records: list[StepRecord] = []
    for _ in range(max_steps):
        record = step_record(engine.step(), engine.load(), NOW)
        if record is None:
            return records
        records.append(record)
    raise AssertionError(f"still running after {max_steps} steps")


def test_a_prompt_is_recorded_in_chunks_and_a_generated_token_as_a_decode(new_request: RequestFactory) -> None:
    engine = make_engine()
    engine.add(new_request(range(10), max_tokens=3))
    records = records_of(engine)
    assert [record.chunks for record in records] == [(Chunk("r0", 0, 8),), (Chunk("r0", 8, 2),), (), ()]
    assert [record.decodes for record in records] == [(), (), ("r0",), ("r0",)]
    assert [record.admissions for record in records] == [(Admission("r0", 0.0, 10, 0, False),), (), (), ()]
    assert [[ending.reason for ending in record.endings] for record in records] == [[], [], [], ["length"]]


def test_times_are_those_of_the_computation(new_request: RequestFactory) -> None:
    engine = make_engine()
    engine.add(new_request([1, 2, 3]))
    result = engine.step()
    record = step_record(result, engine.load(), NOW)
    assert record is not None
    assert (record.started_at, record.ended_at) == (result.started_at, result.started_at + result.duration_s)
    assert result.started_at > 0


def test_tokens_in_the_prefix_cache_are_told_and_not_computed(new_request: RequestFactory) -> None:
    engine = make_engine()
    engine.add(new_request(range(9), max_tokens=1))
    records_of(engine)
    engine.add(new_request(range(9), max_tokens=1))
    (record,) = records_of(engine)
    assert record.admissions == (Admission("r1", 1.0, 9, 8, False),)
    assert record.chunks == (Chunk("r1", 8, 1),)


def test_a_request_that_waits_for_a_peer_s_kv_is_recorded_though_nothing_was_computed(
    new_request: RequestFactory,
) -> None:
    engine = make_engine()
    engine.add(new_request([1, 2, 3], awaits_kv=True))
    record = step_record(engine.step(), engine.load(), NOW)
    assert record is not None
    assert (record.started_at, record.duration_s, record.num_running) == (NOW, 0.0, 1)
    assert record.admissions == (Admission("r0", 0.0, 3, 0, True),)


@pytest.mark.parametrize("kind", ["swap", "recompute"])
def test_preemptions_are_recorded_with_their_kind(new_request: RequestFactory, kind: str) -> None:
    engine = make_engine(num_blocks=8, decode_headroom_blocks=0, preemption=kind, num_swap_blocks=8)
    for start in (0, 100):
        engine.add(new_request(range(start, start + 12), max_tokens=12))
    records = records_of(engine)
    swapped = [request_id for record in records for request_id in record.swapped_out]
    dropped = [request_id for record in records for request_id in record.dropped]
    assert set(swapped if kind == "swap" else dropped) == {"r1"}
    assert not (dropped if kind == "swap" else swapped)
    num_out = sum(record.num_blocks_swapped_out for record in records)
    num_in = sum(record.num_blocks_swapped_in for record in records)
    assert (num_out > 0, num_in > 0) == (kind == "swap", kind == "swap")


def test_an_idle_tick_leaves_no_record() -> None:
    assert step_record(StepResult(), EngineLoad(), NOW) is None


def test_a_failed_request_s_end_is_recorded() -> None:
    record = step_record(StepResult(failed=[("r0", "ValueError: no")]), EngineLoad(), NOW)
    assert record is not None
    assert [(ending.request_id, ending.reason) for ending in record.endings] == [("r0", "failed")]


def test_a_record_keeps_no_request_alive(new_request: RequestFactory) -> None:
    engine = make_engine()
    request = new_request([1, 2, 3], max_tokens=1)
    watched = weakref.ref(request)
    engine.add(request)
    records = records_of(engine)
    del request
    gc.collect()
    assert len(records) == 1
    assert watched() is None
