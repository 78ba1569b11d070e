"""What the proxy tells of the answers that went through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import grpc
import pytest

from proxy.fronts.observe_servicer import COURSES_PER_MESSAGE, ObserveServicer, is_local
from proxy.request.course_log import CourseLog
from rpc import observe_pb2, observe_pb2_grpc
from tests.unit.proxy.conftest import Cluster, MakeCluster, collect


async def read(cluster: Cluster, since: int = 0, newest_s: float | None = None) -> list[observe_pb2.Records]:
    async with grpc.aio.insecure_channel(cluster.addresses.grpc) as channel:
        request = observe_pb2.ReadRequest(since=since, newest_s=newest_s)
        return [records async for records in observe_pb2_grpc.ObserveStub(channel).Read(request, timeout=5)]


def courses_of(messages: Sequence[observe_pb2.Records]) -> list[tuple[str, observe_pb2.Course]]:
    return [(m.request_ids[course.request], course) for m in messages for course in m.courses]


async def answer(cluster: Cluster, request_id: str) -> str:
    """One request from end to end; its id on the wire."""
    lifecycle = await cluster.submit(request_id=request_id)
    _, start = await cluster.starts()
    cluster.decode.say(start, b"hello", finish="stop")
    await collect(lifecycle)
    return lifecycle.job.wire_id


async def test_an_answer_s_course_is_told_once_it_has_ended(served: Cluster) -> None:
    wire_id = await answer(served, "mine")
    first, *messages = await read(served)
    assert (first.source.name, first.source.role, first.source.next) == ("proxy", 0, 1)
    ((told_id, course),) = courses_of(messages)
    assert told_id == wire_id
    assert told_id.startswith("mine.")
    assert 0 < course.admitted_at <= course.dispatched_at <= course.first_token_at <= course.known_until
    assert (course.outcome, course.prefill_worker, course.decode_worker) == ("ok", "prefill-0", "decode-0")
    assert (course.prompt_tokens, course.completion_tokens, course.num_attempts) == (2, 5, 1)


async def test_a_request_that_runs_is_told_each_time_without_an_outcome(served: Cluster) -> None:
    lifecycle = await served.submit(request_id="mine")
    await served.starts()
    first, *messages = await read(served)
    ((_, course),) = courses_of(messages)
    assert (course.outcome, course.first_token_at, first.source.next) == ("", 0.0, 0)
    assert course.dispatched_at > 0
    _, *again = await read(served, since=first.source.next)
    assert len(courses_of(again)) == 1
    lifecycle.cancel()
    _, *messages = await read(served, since=first.source.next)
    assert [course.outcome for _, course in courses_of(messages)] == ["cancelled"]


async def test_a_reader_goes_on_where_it_was(served: Cluster) -> None:
    for request_id in ("one", "two"):
        await answer(served, request_id)
    _, *messages = await read(served, since=1)
    assert [request_id.partition(".")[0] for request_id, _ in courses_of(messages)] == ["two"]
    assert len(await read(served, newest_s=0)) == 1
    assert len(courses_of((await read(served, newest_s=60))[1:])) == 2


async def test_the_log_is_bounded_and_can_be_off(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, trace_requests=1)
    for request_id in ("one", "two", "three"):
        await answer(cluster, request_id)
    first, *messages = await read(cluster, since=1)
    assert (first.source.num_lost, first.source.next) == (1, 3)
    assert [request_id.partition(".")[0] for request_id, _ in courses_of(messages)] == ["three"]
    off = await make_cluster(fronts=True, trace_requests=0)
    await answer(off, "one")
    (only,) = await read(off)
    assert only.source.capacity == 0


async def test_many_courses_come_in_messages_of_bounded_size(served: Cluster) -> None:
    lifecycle = await served.submit()
    lifecycle.cancel()
    served.proxy.service.courses.ended([lifecycle] * COURSES_PER_MESSAGE, 1.0)
    _, *messages = await read(served)
    assert [len(message.courses) for message in messages] == [COURSES_PER_MESSAGE, 1]


class Stranger:
    """A call from another machine."""

    def peer(self) -> str:
        return "ipv4:10.0.0.7:4711"

    async def abort(self, code: grpc.StatusCode, message: str) -> NoReturn:
        raise PermissionError(code, message)


async def test_a_stranger_is_refused(served: Cluster) -> None:
    servicer = ObserveServicer(served.proxy.service, told_here_only=True)
    with pytest.raises(PermissionError, match="PERMISSION_DENIED"):
        await anext(servicer.Read(observe_pb2.ReadRequest(), Stranger()))  # type: ignore[arg-type]


def test_a_log_without_room_keeps_nothing() -> None:
    assert CourseLog(0).since(0) == (0, [])


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("ipv4:127.0.0.1:4711", True),
        ("ipv6:%5B::1%5D:4711", True),
        ("ipv6:[::1]:4711", True),
        ("unix:/tmp/socket", True),
        ("ipv4:10.0.0.7:4711", False),
        ("ipv6:%5B2001:db8::7%5D:4711", False),
        ("", False),
    ],
)
def test_only_this_machine_is_told(peer: str, local: bool) -> None:
    assert is_local(peer) == local
