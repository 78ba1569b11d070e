from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry, Counter

from engine.batch import Batch, Runner, Work
from engine.engine import Engine, StepResult
from engine.engine_thread import EngineThread
from engine.errors import EngineStopped
from engine.fake_runner import FakeRunner
from engine.request import Request, RequestKind
from engine.sampled_token import SampledToken, SamplingFailure
from tests.unit.engine.conftest import RequestFactory, make_engine


def test_commands_run_between_steps_and_results_reach_subscribers(new_request: RequestFactory) -> None:
    thread = EngineThread(make_engine())
    tokens: list[int] = []
    ended = threading.Event()

    def on_step(result: StepResult) -> None:
        for output in result.tokens:
            tokens.append(output.token_id)
            if output.finish_reason:
                ended.set()

    thread.subscribe(on_step)
    thread.start()
    thread.call(lambda engine: engine.add(new_request([5, 6, 7], max_tokens=3))).result(5)
    assert ended.wait(5)
    thread.stop()
    assert tokens == FakeRunner.expected([5, 6, 7], 3)


def test_a_subscriber_that_fails_at_every_step_stops_no_request(new_request: RequestFactory) -> None:
    """Field report D35: the one that counts for the metrics is a subscriber."""
    thread = EngineThread(make_engine())
    counter = Counter("tokens", "Counts backwards", registry=CollectorRegistry())
    tokens: list[int] = []
    ended = threading.Event()

    def on_step(result: StepResult) -> None:
        tokens.extend(output.token_id for output in result.tokens)
        if any(output.finish_reason for output in result.tokens):
            ended.set()

    thread.subscribe(lambda _: counter.inc(-1))
    thread.subscribe(on_step)
    thread.start()
    thread.call(lambda engine: engine.add(new_request([5, 6, 7], max_tokens=3))).result(5)
    assert ended.wait(5)
    thread.stop()
    assert tokens == FakeRunner.expected([5, 6, 7], 3)
    assert not thread.died.done()


def test_an_error_in_a_command_goes_to_its_caller_and_the_thread_goes_on() -> None:
    thread = EngineThread(make_engine())
    thread.start()
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda engine: 1 // 0).result(5)
    assert thread.call(lambda engine: engine.pool.num_free).result(5) == 32
    thread.stop()


def test_an_idle_engine_still_ticks() -> None:
    thread = EngineThread(make_engine(), tick_s=0.01)
    ticked = threading.Event()
    thread.subscribe(lambda result: ticked.set())
    thread.start()
    assert ticked.wait(5)
    thread.stop()


def test_calls_after_stop_are_refused() -> None:
    thread = EngineThread(make_engine())
    thread.start()
    thread.stop()
    with pytest.raises(EngineStopped):
        thread.call(lambda engine: None).result(5)


class TestWatchingLayers:
    """What is told of a step while it is computed."""

    def run(self, requests: Sequence[Request], fails_first: bool = False, until: int | None = None) -> list[int]:
        """The numbers of layers that were told; no step ends before `until` was."""
        told: list[int] = []
        heard = threading.Event()
        held = threading.Semaphore(0)

        def on_layers(works: Sequence[Work], num_layers: int) -> None:
            assert [work.request for work in works] == requests
            told.append(num_layers)
            if num_layers == until:
                heard.set()

        engine: Engine = make_engine()
        engine.runner = PatientRunner(engine.runner, heard if until is not None else None, fails_first)
        thread = EngineThread(engine)
        thread.watch_layers((1, 2), on_layers)
        thread.subscribe(lambda result: held.release(len(result.tokens)) if result.tokens else None)
        thread.start()
        thread.call(lambda engine: add_all(engine, requests)).result(5)
        for _ in requests:
            assert held.acquire(timeout=5)
        thread.stop()
        return told

    def test_the_end_of_a_prompt_for_another_worker_is_told_by_layers(self, new_request: RequestFactory) -> None:
        assert self.run([new_request([1, 2, 3], kind=RequestKind.PREFILL)], until=2) == [1, 2]

    def test_nobody_hears_of_other_steps(self, new_request: RequestFactory) -> None:
        assert self.run([new_request([1, 2, 3], max_tokens=1)]) == []

    def test_a_step_that_begins_anew_says_so(self, new_request: RequestFactory) -> None:
        requests = [new_request([i, 2, 3], kind=RequestKind.PREFILL) for i in range(2)]
        assert self.run(requests, fails_first=True, until=0) == [1, 2, 0]


def add_all(engine: Engine, requests: Sequence[Request]) -> None:
    for request in requests:
        engine.add(request)


class PatientRunner:
    """Ends no step before an event, except that the first may fail once all of it is written."""

    def __init__(self, runner: Runner, until: threading.Event | None, fails_first: bool) -> None:
        self._runner = runner
        self._until = until
        self._fails = fails_first

    def run(self, batch: Batch) -> Sequence[SampledToken | SamplingFailure]:
        tokens = self._runner.run(batch)
        if self._fails:
            self._fails = False
            raise RuntimeError("a bit flipped")
        assert self._until is None or self._until.wait(5)
        return tokens


def test_a_device_that_fails_every_step_ends_the_thread_with_a_reason(new_request: RequestFactory) -> None:
    engine: Engine = make_engine()
    engine.runner = BrokenDevice()
    thread = EngineThread(engine, tick_s=0.01)
    failures: queue.SimpleQueue[str] = queue.SimpleQueue()

    def on_step(result: StepResult) -> None:
        for request_id, _ in result.failed:
            failures.put(request_id)

    thread.subscribe(on_step)
    thread.start()
    for n in range(3):
        thread.call(lambda engine, n=n: engine.add(new_request([n]))).result(5)  # type: ignore[misc]
        assert failures.get(timeout=5) == f"r{n}"
    assert "device lost" in thread.died.result(5)


def test_commands_need_not_wait_for_the_model_and_may_end_what_it_computes(new_request: RequestFactory) -> None:
    engine = make_engine()
    runner = SlowRunner(engine.runner)
    engine.runner = runner
    thread = EngineThread(engine)
    results: list[StepResult] = []
    thread.subscribe(results.append)
    thread.start()
    thread.call(lambda engine: engine.add(new_request([1, 2, 3]))).result(5)
    thread.call(lambda engine: engine.add(new_request([4, 5, 6]))).result(5)
    assert runner.computing.wait(5)
    assert thread.call(lambda engine: engine.abort("r0")).result(5)
    assert thread.call(lambda engine: engine.pool.allocate(0)).result(5) == []
    runner.go_on.set()
    ended = threading.Event()
    thread.subscribe(lambda result: ended.set() if not engine.requests else None)
    assert ended.wait(5)
    thread.stop()
    engine.check_integrity()
    tokens = [output for result in results for output in result.tokens]
    assert [t.token_id for t in tokens if t.request_id == "r1"] == FakeRunner.expected([4, 5, 6], 4)
    assert not [t for t in tokens if t.request_id == "r0"]


def test_a_fault_in_the_loop_itself_ends_the_thread_with_a_reason_and_refuses_what_comes() -> None:
    engine = make_engine()
    thread = EngineThread(engine)
    thread.start()
    thread.tell(break_the_scheduler)
    assert "no attribute" in thread.died.result(5)
    with pytest.raises(EngineStopped):
        thread.call(lambda engine: None).result(5)


def break_the_scheduler(engine: Engine) -> None:
    del engine.scheduler.running


def test_a_long_step_does_not_stop_the_ticks(new_request: RequestFactory) -> None:
    engine = make_engine()
    runner = SlowRunner(engine.runner)
    engine.runner = runner
    thread = EngineThread(engine, tick_s=0.01)
    thread.start()
    thread.call(lambda engine: engine.add(new_request([1]))).result(5)
    assert runner.computing.wait(5)
    ticked = threading.Event()
    thread.subscribe(lambda result: ticked.set())
    assert ticked.wait(5)
    runner.go_on.set()
    thread.stop()


class SlowRunner:
    """Computes its first batch only when told to."""

    def __init__(self, runner: Runner) -> None:
        self.computing, self.go_on = threading.Event(), threading.Event()
        self._runner = runner

    def run(self, batch: Batch) -> Sequence[SampledToken | SamplingFailure]:
        self.computing.set()
        assert self.go_on.wait(5)
        return self._runner.run(batch)


class BrokenDevice:
    def run(self, batch: Batch) -> Sequence[SampledToken | SamplingFailure]:
        raise RuntimeError("device lost")
