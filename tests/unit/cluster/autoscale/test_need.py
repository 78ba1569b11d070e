"""What is measured, and what is made of it."""

from __future__ import annotations

import pytest

from cluster.autoscale.need import DecodeLoad, Need, decode_need, missed_target, prefill_need
from cluster.autoscale.spec import AutoscaleSpec, ClassTargets, Targets
from cluster.autoscale.speed import PoolSpeed
from cluster.autoscale.traffic import ClassTimes, Traffic, TrafficWindow, quantile
from rpc import control_pb2, worker_pb2

SPEC = AutoscaleSpec(headroom=0.5, targets=Targets(interactive=ClassTargets(ttft_s=1.0, tpot_s=0.1)))
IDLE = DecodeLoad(num_reporting=2, kv_usage=0.1, max_streams=64)


def load(num_steps: int, step_s: float, prefill: int = 0, decode: int = 0) -> worker_pb2.Load:
    return worker_pb2.Load(num_steps=num_steps, step_s=step_s, num_prefill_tokens=prefill, num_decode_tokens=decode)


def decode_speed(beside: int = 0) -> PoolSpeed:
    """Steps of 20 ms and 2 ms more for each token; `beside`: prompt tokens in each."""
    speed, total = PoolSpeed(), load(0, 0.0)
    speed.looked({"a": total})
    for streams in (2, 4, 8, 16, 24):
        total = load(
            total.num_steps + 10,
            total.step_s + 10 * (0.02 + 0.002 * (streams + beside)),
            total.num_prefill_tokens + 10 * beside,
            total.num_decode_tokens + 10 * streams,
        )
        speed.looked({"a": total})
    return speed


def traffic(**times: ClassTimes) -> Traffic:
    return Traffic(10.0, 2000.0, 0.5, 40.0, times or {"interactive": ClassTimes()})


def report(proxy: str = "proxy", span_s: float = 30.0, **told: object) -> control_pb2.TrafficReport:
    each = control_pb2.ClassTraffic(priority="interactive", **told)  # type: ignore[arg-type]
    return control_pb2.TrafficReport(proxy_incarnation=proxy, span_s=span_s, classes=[each])


def test_a_prompt_token_costs_what_the_newest_steps_say_and_a_new_incarnation_starts_anew() -> None:
    speed = PoolSpeed()
    assert speed.seconds_per_prompt_token is None
    speed.looked({"a": load(10, 1.0, prefill=1000)})
    assert speed.seconds_per_prompt_token is None
    speed.looked({"a": load(20, 3.0, prefill=2000), "b": load(5, 9.0, prefill=10)})
    assert speed.seconds_per_prompt_token == pytest.approx(0.002)
    speed.looked({"c": load(5, 9.0, prefill=10)})
    assert speed.seconds_per_prompt_token == pytest.approx(0.002)


def test_a_line_through_the_steps_tells_how_many_streams_fit_into_the_target() -> None:
    speed = decode_speed()
    assert speed.streams_within(0.1, most=64) == pytest.approx(40)
    assert speed.streams_within(0.1, most=32) == 32
    assert speed.streams_within(None, most=32) == 32
    assert speed.streams_within(0.01, most=64) == 1.0
    assert speed.step_s(40) == pytest.approx(0.1)


def test_prompts_computed_beside_the_streams_take_their_share() -> None:
    streams = decode_speed(beside=10).streams_within(0.1, most=64)
    assert streams is not None
    assert streams < 30


def test_steps_that_are_all_alike_tell_nothing_of_what_more_streams_would_cost() -> None:
    speed = PoolSpeed()
    for number in range(1, 8):
        speed.looked({"a": load(10 * number, 0.5 * number, decode=100 * number)})
    assert speed.streams_within(0.1, most=64) is None
    assert decode_need(traffic(), speed, IDLE, SPEC) is None


def test_prefill_needs_its_share_of_the_prompt_tokens_times_their_cost_and_headroom() -> None:
    speed = PoolSpeed()
    assert prefill_need(traffic(), speed, SPEC) is None
    for number in (1, 2):
        speed.looked({"a": load(number, 0.001 * 1000 * number, prefill=1000 * number)})
    need = prefill_need(traffic(), speed, SPEC)
    assert need is not None
    assert need.workers == pytest.approx(2.0)  # 2000/s, of which half, of 1 ms, and as much headroom


def test_decode_needs_what_comes_over_what_a_worker_makes_at_the_target() -> None:
    need = decode_need(traffic(), decode_speed(), IDLE, SPEC)
    assert need is not None
    assert need.workers == pytest.approx(2.0)  # 400/s over 40 streams of 10/s each, and as much headroom
    assert need.reason == "load"


def test_full_kv_caches_ask_for_workers_whatever_the_speed() -> None:
    full = DecodeLoad(num_reporting=4, kv_usage=0.96, max_streams=64)
    need = decode_need(traffic(), decode_speed(), full, SPEC)
    assert need is not None
    assert need.workers == pytest.approx(4.8)
    assert need.reason == "kv"
    assert decode_need(traffic(), PoolSpeed(), full, SPEC) == need


def test_a_late_first_token_asks_for_a_prefill_worker_unless_decode_workers_lack_or_prefill_is_idle() -> None:
    late = traffic(interactive=ClassTimes(queue_s=[2.0] * 10, first_token_s=[0.1] * 5 + [3.0] * 5))
    sizes = {"prefill": 2, "decode": 2}

    def missed(prefill: float, decode: float) -> Need | None:
        needs = {"prefill": Need(prefill, "load", ""), "decode": Need(decode, "load", "")}
        return missed_target("prefill", late, needs, sizes, SPEC)  # type: ignore[arg-type]

    found = missed(1.8, 1.0)
    assert found is not None
    assert (found.workers, found.reason) == (3.0, "ttft")
    assert found.text == "TTFT p90 of interactive requests is 3 s, 1 s is the target, of it in the queue 2.00 s"
    assert missed(1.8, 2.5) is None
    assert missed(0.9, 1.0) is None


def test_slow_tokens_ask_for_a_decode_worker_and_a_class_without_a_target_for_none() -> None:
    needs, sizes = {"prefill": Need(1, "load", ""), "decode": None}, {"prefill": 2, "decode": 2}
    slow = ClassTimes(per_token_s=[0.2] * 10)
    found = missed_target("decode", traffic(interactive=slow), needs, sizes, SPEC)  # type: ignore[arg-type]
    assert found is not None
    assert found.reason == "tpot"
    assert missed_target("decode", traffic(batch=slow), needs, sizes, SPEC) is None  # type: ignore[arg-type]
    few = ClassTimes(per_token_s=[0.2])
    assert missed_target("decode", traffic(interactive=few), needs, sizes, SPEC) is None  # type: ignore[arg-type]


def test_a_window_adds_up_proxies_forgets_what_is_old_and_counts_the_refused_as_demand() -> None:
    window = TrafficWindow(30.0)
    assert window.look(0.0) is None
    window.add(report(num_arrived=900, num_prompt_tokens=9000), 0.0)
    window.add(report(num_arrived=60, num_prompt_tokens=600, num_refused=30), 30.0)
    window.add(report("other", num_arrived=30, num_prompt_tokens=600, num_refused=60), 31.0)
    seen = window.look(31.0)
    assert seen is not None
    assert seen.arrivals_per_s == pytest.approx(6.0)
    assert seen.prompt_tokens_per_s == pytest.approx(80.0)
    assert seen.prefill_share is None
    assert seen.generated_tokens_per_s is None
    assert window.look(61.0) is None


def test_half_a_window_is_the_least_that_is_looked_at() -> None:
    window = TrafficWindow(30.0)
    window.add(report(span_s=14.0, num_arrived=1), 1.0)
    assert window.look(1.0) is None
    window.add(report(span_s=1.0, num_arrived=14), 2.0)
    seen = window.look(2.0)
    assert seen is not None
    assert seen.arrivals_per_s == pytest.approx(1.0)


def test_who_still_waits_counts_once_with_the_wait_so_far() -> None:
    window = TrafficWindow(30.0)
    window.add(report(waiting_s=[4.0], num_arrived=1, span_s=20), 1.0)
    window.add(report(waiting_s=[9.0], first_token_s=[0.5], span_s=20), 2.0)
    seen = window.look(2.0)
    assert seen is not None
    assert seen.classes["interactive"].first_token_s == [0.5, 9.0]


def test_a_quantile_is_a_value_that_was_seen() -> None:
    assert quantile([], 0.9) is None
    assert quantile([1.0], 0.9) == 1.0
    assert quantile([float(n) for n in range(1, 11)], 0.9) == 9.0
