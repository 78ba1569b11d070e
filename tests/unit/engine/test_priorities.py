"""Who goes first: priority, then arrival, and waiting makes up for priority."""

from __future__ import annotations

from engine.fake_runner import FakeRunner
from tests.unit.engine.conftest import RequestFactory, make_engine, run_to_end

BATCH = 21


def test_a_lower_number_is_admitted_first(new_request: RequestFactory) -> None:
    engine = make_engine(max_num_seqs=1)
    for priority in (BATCH, 3, 0, 3, -5):
        engine.add(new_request([priority + 5] * 5, max_tokens=1, priority=priority))
    order = [request.request_id for request in engine.scheduler.waiting]
    assert order == ["r4", "r2", "r1", "r3", "r0"]
    assert list(run_to_end(engine)) == order


def test_waiting_makes_up_for_priority(new_request: RequestFactory) -> None:
    engine = make_engine(max_num_seqs=1, priority_ageing_s=2.0)
    old, early, late = (new_request([n] * 5, max_tokens=1, priority=p) for n, p in enumerate((BATCH, 0, 0)))
    old.arrived_at, early.arrived_at, late.arrived_at = 0.0, 41.0, 43.0
    for request in (late, early, old):
        engine.add(request)
    assert list(run_to_end(engine)) == [early.request_id, old.request_id, late.request_id]


def test_prompts_share_the_budget_in_the_order_of_priority(new_request: RequestFactory) -> None:
    engine = make_engine(max_num_batched_tokens=40, max_num_seqs=8, prefill_chunk_size=40)
    engine.add(new_request([1] * 60, max_tokens=1, priority=BATCH))
    assert engine.step().num_tokens == 40
    engine.add(new_request([2] * 30, max_tokens=1))
    works = engine.step().works
    assert [(work.request.request_id, work.num_tokens) for work in works] == [("r1", 30), ("r0", 10)]


def test_without_room_the_worst_priority_gives_way_then_the_latest_arrival(new_request: RequestFactory) -> None:
    engine = make_engine(num_blocks=12, decode_headroom_blocks=0, enable_prefix_caching=False)
    requests = [new_request([n] * 8, max_tokens=20, priority=p) for n, p in enumerate((BATCH, 0, 0, 0))]
    for request in requests:
        engine.add(request)
    victims: list[str] = []
    while result := engine.step():
        victims += [preemption.request.request_id for preemption in result.preempted]
        if not result.num_tokens:
            break
    assert victims[:2] == ["r0", "r3"]
    assert requests[1].num_preemptions == 0


def test_an_interactive_request_takes_the_place_of_a_batch_request(new_request: RequestFactory) -> None:
    engine = make_engine(max_num_seqs=2, num_blocks=64)
    batch = [new_request([n] * 6, max_tokens=12, priority=BATCH) for n in range(2)]
    for request in batch:
        engine.add(request)
    engine.step()
    urgent = new_request([7] * 6, max_tokens=3)
    engine.add(urgent)
    result = engine.step()
    assert [preemption.request for preemption in result.preempted] == [batch[1]]
    assert urgent.num_computed == 6
    tokens = run_to_end(engine)
    assert tokens["r2"] == FakeRunner.expected([7] * 6, 3)[1:]
    assert [request.num_preemptions for request in batch] == [0, 1]


def test_nobody_gives_way_when_it_would_not_be_enough(new_request: RequestFactory) -> None:
    engine = make_engine(num_blocks=16, decode_headroom_blocks=0)
    engine.add(new_request([1] * 40, max_tokens=20))
    engine.add(new_request([2] * 8, max_tokens=20, priority=BATCH))
    engine.step()
    engine.add(new_request([3] * 40, max_tokens=2))
    assert not engine.step().preempted


def test_a_request_gives_way_to_newcomers_once_only(new_request: RequestFactory) -> None:
    engine = make_engine(max_num_seqs=1, num_blocks=64, priority_ageing_s=0.01)
    engine.add(new_request([1] * 6, max_tokens=30, priority=BATCH))
    for n in range(2, 8):
        engine.step()
        engine.add(new_request([n] * 6, max_tokens=2))
    run_to_end(engine)
    assert engine.pool.counts().used == 0


def test_reservations_are_made_in_the_order_of_priority(new_request: RequestFactory) -> None:
    engine = make_engine(num_blocks=16, max_receiving_share=0.5)
    low = new_request([1] * 16, awaits_kv=True, priority=BATCH)
    high = [new_request([n] * 16, awaits_kv=True) for n in (2, 3)]
    for request in (low, *high):
        engine.add(request)
    assert list(engine.step().reserved) == high
