"""What a worker says of its steps."""

from __future__ import annotations

from cluster.step_totals import StepTotals
from engine.engine import StepResult
from rpc import worker_pb2


def test_a_load_report_tells_the_steps_and_what_they_took_and_an_idle_tick_is_none() -> None:
    totals, load = StepTotals(), worker_pb2.Load(num_running=3)
    totals.observe(StepResult(num_prefill_tokens=100, num_decode_tokens=4, duration_s=0.5))
    totals.observe(StepResult(num_decode_tokens=6, duration_s=0.25))
    totals.observe(StepResult())
    totals.tell(load)
    told = (load.num_running, load.num_steps, load.step_s, load.num_prefill_tokens, load.num_decode_tokens)
    assert told == (3, 2, 0.75, 100, 10)
