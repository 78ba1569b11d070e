"""What the rolling drill counts and takes for a fault, over a transport that answers in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import httpx
import pytest

from bench.chaos.fleet import Target
from bench.rolling import Outcome, Plan, RollingDrill
from deploy.errors import CommandError

PLAN = Plan(seed=3, concurrency=4, num_questions=5, request_s=20.0)  # text only: no chat among the first five kinds


class Server:
    """Answers each prompt with itself, until it is told to do otherwise; its workers are numbered."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.suffix = ""
        self.status = 200
        self.incarnation = 1
        self.num_workers = 1
        self.asked = asyncio.Event()  # since `forget`

    async def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text="pdserve_migrations_total 2\n")
        self.num_asked += 1
        self.asked.set()
        await asyncio.sleep(0)
        body = json.loads(request.content)
        choice = {"index": 0, "text": body["prompt"] + self.suffix, "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        event = json.dumps({"choices": [choice], "usage": usage})
        if body.get("stream"):
            return httpx.Response(self.status, text=f"data: {event}\n\ndata: [DONE]\n\n")
        return httpx.Response(self.status, text=event)

    async def ready(self) -> Sequence[Target]:
        return [Target("decode-0", "decode", f"i{self.incarnation}", 1, "127.0.0.1:1")] * self.num_workers

    async def died(self, target: Target) -> None:
        raise AssertionError(f"nobody is to die here, and {target} did")

    async def several_answers(self) -> None:
        """Of what was asked from now on."""
        for _ in range(3 * PLAN.concurrency):
            self.asked.clear()
            await self.asked.wait()


async def drill(server: Server, change: Callable[[], None]) -> Outcome:
    async with httpx.AsyncClient(transport=httpx.MockTransport(server.answer)) as client:

        async def replace(done: Callable[[str], None]) -> None:
            change()
            await server.several_answers()
            done("decode-0")

        async with asyncio.timeout(30):
            return await RollingDrill(PLAN, client, "http://test", "fake", server).run(replace)


async def test_all_is_well_when_each_answer_is_as_before_and_every_worker_is_another_one() -> None:
    server = Server()
    outcome = await drill(server, lambda: setattr(server, "incarnation", 2))
    assert list(outcome.faults) == []
    rows = dict(outcome.rows())
    assert rows["requests"] == rows["answered as undisturbed"] == f"{server.num_asked - PLAN.num_questions}"
    assert (rows["workers replaced"], rows["went on from a token on another worker"]) == ("1", "2")


async def test_a_worker_that_stayed_and_one_that_is_missing_are_faults() -> None:
    assert list((await drill(Server(), lambda: None)).faults) == ["not replaced: decode-0"]
    server = Server()
    outcome = await drill(server, lambda: setattr(server, "num_workers", 0))
    assert list(outcome.faults) == ["not replaced: 1 workers were ready before, 0 after"]


async def test_a_text_that_differs_and_a_refusal_are_faults() -> None:
    server = Server()
    outcome = await drill(server, lambda: setattr(server, "suffix", "!"))
    assert outcome.wrong
    assert any(fault.startswith("wrong: request ") for fault in outcome.faults)
    server = Server()
    outcome = await drill(server, lambda: setattr(server, "status", 503))
    assert any(fault.startswith("failed: request ") and "Refused 503" in fault for fault in outcome.faults)


async def test_a_replacement_that_fails_ends_the_questions_and_is_what_comes_out() -> None:
    server = Server()

    async def replace(_done: Callable[[str], None]) -> None:
        raise CommandError("decode-1 could not start")

    async with httpx.AsyncClient(transport=httpx.MockTransport(server.answer)) as client, asyncio.timeout(30):
        with pytest.raises(CommandError, match="decode-1 could not start"):
            await RollingDrill(PLAN, client, "http://test", "fake", server).run(replace)


def test_a_drill_without_an_answer_proves_nothing() -> None:
    assert list(Outcome().faults) == ["no request was answered, so that it proves nothing"]
