"""A stand-in for a controller and one mixed worker that speaks at a fixed pace, whatever it is asked.

`python -m bench.paced_worker --step-s 0.05` prints its address. A request's first token comes at once, the others with
the steps, those of all requests in one message; so what a client sees is what lies between it and a worker.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc

from rpc import control_pb2, control_pb2_grpc, worker_pb2, worker_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION

INCARNATION = "paced"
LOAD_S = 1.0
TOKEN_ID = 216  # of the default model: a space, so that there is text with each token
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class Paced:
    """One request and how far it is."""

    attempt: int
    num_prompt: int
    max_tokens: int
    index: int = 0


class PacedWorker(worker_pb2_grpc.DecodeServicer, control_pb2_grpc.MembershipServicer):
    """Maintains nothing between sessions."""

    def __init__(self, step_s: float) -> None:
        self.address = ""
        self._step_s = step_s

    async def Watch(  # noqa: N802
        self, request: control_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[control_pb2.Members]:
        member = control_pb2.Member(
            worker="mixed-0",
            incarnation=INCARNATION,
            role=worker_pb2.ROLE_MIXED,
            role_epoch=1,
            state=control_pb2.WORKER_READY,
            address=self.address,
        )
        yield control_pb2.Members(version=1, controller_incarnation=INCARNATION, members=[member])
        await asyncio.Event().wait()  # until the proxy drops the call

    async def Session(  # noqa: N802
        self, commands: AsyncIterator[worker_pb2.DecodeCommand], context: Context
    ) -> AsyncIterator[worker_pb2.DecodeEvent]:
        events: asyncio.Queue[worker_pb2.DecodeEvent] = asyncio.Queue()
        running: dict[str, Paced] = {}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take(commands, events, running))
            tasks.create_task(self._speak(events, running))
            tasks.create_task(report_load(events))
            while True:
                yield await events.get()

    async def _take(
        self,
        commands: AsyncIterator[worker_pb2.DecodeCommand],
        events: asyncio.Queue[worker_pb2.DecodeEvent],
        running: dict[str, Paced],
    ) -> None:
        async for command in commands:
            match command.WhichOneof("command"):
                case "hello":
                    events.put_nowait(worker_pb2.DecodeEvent(welcome=welcome()))
                    events.put_nowait(load())
                case "start":
                    request, attempt = command.start.request, command.start.attempt
                    paced = Paced(attempt, len(request.prompt_ids), request.sampling.max_tokens)
                    running[request.request_id] = paced
                    events.put_nowait(next_tokens({request.request_id: paced}))
                case "abort":
                    running.pop(command.abort.request_id, None)

    async def _speak(self, events: asyncio.Queue[worker_pb2.DecodeEvent], running: dict[str, Paced]) -> None:
        loop = asyncio.get_running_loop()
        step_at = loop.time()
        while True:
            step_at += self._step_s
            await asyncio.sleep(step_at - loop.time())
            for request_id in [name for name, paced in running.items() if paced.index >= paced.max_tokens]:
                del running[request_id]
            if running:
                events.put_nowait(next_tokens(running))


def next_tokens(running: dict[str, Paced]) -> worker_pb2.DecodeEvent:
    """One more token of each request."""
    step = worker_pb2.StepTokens()
    for request_id, paced in running.items():
        tokens = step.requests.add(request_id=request_id, attempt=paced.attempt, index=paced.index, ids=[TOKEN_ID])
        if paced.index == 0:
            tokens.origin.computed_tokens = paced.num_prompt
        paced.index += 1
        if paced.index == paced.max_tokens:
            tokens.finish_reason = "length"
    return worker_pb2.DecodeEvent(tokens=step)


def welcome() -> worker_pb2.Welcome:
    return worker_pb2.Welcome(
        protocol_version=PROTOCOL_VERSION,
        worker_incarnation=INCARNATION,
        role=worker_pb2.ROLE_MIXED,
        role_epoch=1,
        max_model_len=8192,
    )


def load() -> worker_pb2.DecodeEvent:
    return worker_pb2.DecodeEvent(load=worker_pb2.Load(num_blocks=1024, num_free_blocks=1024, admitting=True))


async def report_load(events: asyncio.Queue[worker_pb2.DecodeEvent]) -> None:
    while True:
        await asyncio.sleep(LOAD_S)
        events.put_nowait(load())


async def serve(step_s: float) -> None:
    worker = PacedWorker(step_s)
    server = grpc.aio.server()
    worker_pb2_grpc.add_DecodeServicer_to_server(worker, server)
    control_pb2_grpc.add_MembershipServicer_to_server(worker, server)
    worker.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    print(worker.address, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--step-s", type=float, default=0.05, help="seconds between the tokens of a request")
    asyncio.run(serve(parser.parse_args().step_s))
