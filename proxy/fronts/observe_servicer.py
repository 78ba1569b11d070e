"""The proxy's `Observe`: how each answer went, those that run included.

It is told to this machine only, or where there are API keys to whoever may observe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import grpc

from proxy.request.course_log import Course
from proxy.service import GenerationService
from rpc import observe_pb2, observe_pb2_grpc
from security.address import is_loopback

COURSES_PER_MESSAGE = 256
Context = grpc.aio.ServicerContext[Any, Any]


class ObserveServicer(observe_pb2_grpc.ObserveServicer):
    def __init__(self, service: GenerationService, *, told_here_only: bool) -> None:
        self._service = service
        self._told_here_only = told_here_only

    async def Read(  # noqa: N802  gRPC's name
        self, request: observe_pb2.ReadRequest, context: Context
    ) -> AsyncIterator[observe_pb2.Records]:
        if self._told_here_only and not is_local(context.peer()):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the proxy's records are told to its machine only")
        now = asyncio.get_running_loop().time()
        log = self._service.courses
        first, courses = log.since(request.since)
        yield observe_pb2.Records(
            source=observe_pb2.Source(
                name="proxy",
                unix_at_zero=time.time() - now,
                next=first + len(courses),
                num_lost=max(0, first - request.since),
                capacity=log.capacity,
            )
        )
        if log.capacity:
            courses += [Course.of(choice, now) for choice in self._service.running]
        if request.HasField("newest_s"):
            courses = [course for course in courses if course.known_until > now - request.newest_s]
        for message in course_messages(courses):
            yield message
            await asyncio.sleep(0)


def is_local(peer: str) -> bool:
    """Of gRPC's name for who called, as in `ipv4:127.0.0.1:4711` and `ipv6:%5B::1%5D:4711`."""
    kind, _, address = unquote(peer).partition(":")
    return kind == "unix" or is_loopback(address.rpartition(":")[0].strip("[]"))


def course_messages(courses: Sequence[Course]) -> Iterator[observe_pb2.Records]:
    for start in range(0, len(courses), COURSES_PER_MESSAGE):
        message = observe_pb2.Records()
        for place, course in enumerate(courses[start : start + COURSES_PER_MESSAGE]):
            message.request_ids.append(course.wire_id)
            message.courses.add(
                request=place,
                admitted_at=course.admitted_at,
                dispatched_at=course.dispatched_at or 0.0,
                first_token_at=course.first_token_at or 0.0,
                known_until=course.known_until,
                outcome=course.outcome or "",
                prefill_worker=course.prefill_worker or "",
                decode_worker=course.decode_worker or "",
                prompt_tokens=course.num_prompt_tokens,
                completion_tokens=course.num_completion_tokens,
                num_attempts=course.num_attempts,
            )
        yield message
