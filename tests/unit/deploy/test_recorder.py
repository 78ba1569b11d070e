"""Reading a cluster's records: from now on, back in time, and with processes that do not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from deploy.trace.recorder import Recorder, Target
from rpc import observe_pb2, observe_pb2_grpc, worker_pb2
from tests.unit.deploy.trace_records import source


class FakeProcess(observe_pb2_grpc.ObserveServicer):
    """One more step each time it is asked. `stuck`: it takes calls and does not answer."""

    def __init__(self, name: str, capacity: int = 4096, num_lost: int = 0, stuck: bool = False) -> None:
        self.name = name
        self.asked: list[observe_pb2.ReadRequest] = []
        self._source = source(name, worker_pb2.ROLE_DECODE, capacity=capacity, num_lost=num_lost)
        self._stuck = stuck
        self._released = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(2))
        observe_pb2_grpc.add_ObserveServicer_to_server(self, self._server)
        self.target = Target(name, f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}")
        self._server.start()

    def Read(  # noqa: N802
        self, request: observe_pb2.ReadRequest, context: grpc.ServicerContext
    ) -> Iterator[observe_pb2.Records]:
        if self._stuck:
            self._released.wait(10)
        self.asked.append(request)
        self._source.next = len(self.asked)
        yield observe_pb2.Records(source=self._source)
        if not request.HasField("newest_s") or request.newest_s > 0:
            records = observe_pb2.Records()
            records.steps.add(started_at=float(len(self.asked)))
            yield records

    def stop(self) -> None:
        self._released.set()
        self._server.stop(None).wait()


class Cluster:
    """The processes that a recorder finds, and what it warned of."""

    def __init__(self) -> None:
        self.processes: list[FakeProcess] = []
        self.later: list[FakeProcess] = []  # found from the second time on
        self.warnings: list[str] = []
        self._num_finds = 0

    def start(self, name: str, **fields: Any) -> FakeProcess:
        process = FakeProcess(name, **fields)
        self.processes.append(process)
        return process

    def recorder(self, read_timeout_s: float = 5.0) -> Recorder:
        return Recorder(self._find, self.warnings.append, read_timeout_s)

    def stop(self) -> None:
        for process in self.processes + self.later:
            process.stop()

    def _find(self) -> Sequence[Target]:
        self._num_finds += 1
        found = self.processes + (self.later if self._num_finds > 1 else [])
        return [process.target for process in found]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.stop()


def test_only_what_comes_after_the_start_is_followed(cluster: Cluster) -> None:
    process = cluster.start("decode-0")
    (recording,) = cluster.recorder().follow(0.02)
    first, second = process.asked
    assert first.HasField("newest_s")
    assert first.newest_s == 0
    assert not second.HasField("newest_s")
    assert second.since == 1
    assert [step.started_at for records in recording.records for step in records.steps] == [2.0]
    assert cluster.warnings == []


def test_what_lies_back_is_read_at_once(cluster: Cluster) -> None:
    process = cluster.start("decode-0")
    (recording,) = cluster.recorder().last(30.0)
    assert [request.newest_s for request in process.asked] == [30.0]
    assert len(recording.records) == 1


def test_a_process_that_does_not_answer_is_named_and_the_others_are_recorded(cluster: Cluster) -> None:
    cluster.start("decode-0", stuck=True)
    cluster.start("decode-1")
    (recording,) = cluster.recorder(read_timeout_s=1.0).follow(0.02)
    assert recording.source.name == "decode-1"
    assert cluster.warnings == ["decode-0 is left out: it did not answer within 1 s"]


def test_a_process_that_ends_meanwhile_keeps_what_it_had_told(cluster: Cluster) -> None:
    process = cluster.start("decode-0")
    recorder = cluster.recorder()
    assert len(recorder.last(30.0)[0].records) == 1
    process.stop()
    (recording,) = recorder.last(30.0)
    assert len(recording.records) == 1
    assert "decode-0 is left out: UNAVAILABLE" in cluster.warnings[0]


def test_a_process_that_comes_meanwhile_is_read_at_the_end(cluster: Cluster) -> None:
    cluster.start("decode-0")
    cluster.later.append(FakeProcess("decode-1"))
    recordings = cluster.recorder().follow(0.02)
    assert [recording.source.name for recording in recordings] == ["decode-0", "decode-1"]
    assert 0.02 <= cluster.later[0].asked[0].newest_s < 5


def test_a_process_that_records_nothing_is_named(cluster: Cluster) -> None:
    cluster.start("decode-0", capacity=0)
    cluster.recorder().last(1.0)
    assert cluster.warnings == ["decode-0 records nothing: its buffer is set to 0"]


def test_records_that_made_room_for_others_between_two_readings_are_told(cluster: Cluster) -> None:
    cluster.start("decode-0", num_lost=7)
    cluster.recorder().follow(0.02)
    assert cluster.warnings == ["decode-0 records faster than it can be read: 7 records are missing"]
