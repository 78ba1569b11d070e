"""`python -m proxy` as a process: start, refusals, SIGTERM."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest

from rpc import worker_pb2
from tests.unit.proxy.conftest import write_byte_model
from tests.unit.proxy.fake_worker import FakeController, FakeWorker

pytestmark = pytest.mark.integration
PATIENCE_S = 20.0
Launch = Callable[..., Coroutine[Any, Any, Process]]


@pytest.fixture
async def decode() -> AsyncIterator[FakeWorker]:
    worker = FakeWorker("decode-0", worker_pb2.ROLE_DECODE)
    await worker.start()
    yield worker
    await worker.stop()


@pytest.fixture
async def controller(decode: FakeWorker) -> AsyncIterator[FakeController]:
    controller = FakeController()
    await controller.start()
    controller.publish([decode])
    yield controller
    await controller.stop()


@pytest.fixture
async def launch(controller: FakeController, tmp_path: Path) -> AsyncIterator[Launch]:
    processes: list[Process] = []
    write_byte_model(tmp_path)

    async def start(*options: str) -> Process:
        required = ["--controller", controller.address, "--model-dir", str(tmp_path), "--model-name", "bytes"]
        ports = ["--grpc-port", "0", "--http-port", "0"]
        command = [sys.executable, "-m", "proxy", *required, *ports, *options]
        process = await asyncio.create_subprocess_exec(*command, stderr=PIPE)
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def line_with(process: Process, pattern: str) -> re.Match[str]:
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        while line := (await process.stderr.readline()).decode():
            if found := re.search(pattern, line):
                return found
    raise AssertionError(f"the process ended without saying {pattern}")


async def test_it_starts_and_serves(launch: Launch, decode: FakeWorker) -> None:
    decode.answer(b"hello")
    process = await launch()
    http = (await line_with(process, r"http=(\S+)")).group(1)
    await line_with(process, "ready")
    async with httpx.AsyncClient(base_url=f"http://{http}") as client:
        assert (await client.get("/ready")).status_code == 200
        answer = await client.post("/v1/completions", json={"prompt": "hi"})
    assert answer.json()["choices"][0]["text"] == "hello"


async def test_sigterm_lets_a_stream_finish_and_admits_nothing_more(launch: Launch, decode: FakeWorker) -> None:
    process = await launch()
    http = (await line_with(process, r"http=(\S+)")).group(1)
    await line_with(process, "ready")
    async with httpx.AsyncClient(base_url=f"http://{http}", timeout=PATIENCE_S) as client:
        answering = asyncio.create_task(client.post("/v1/completions", json={"prompt": "hi"}))
        start = await decode.next_start()
        process.send_signal(signal.SIGTERM)
        await line_with(process, "stopping")
        refused = await client.post("/v1/completions", json={"prompt": "hi"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        decode.say(start, b"done", finish="length")
        assert (await answering).json()["choices"][0]["text"] == "done"
    async with asyncio.timeout(PATIENCE_S):
        assert await process.wait() == 0


async def test_sigterm_ends_what_does_not_finish_in_time(launch: Launch, decode: FakeWorker) -> None:
    process = await launch("--drain-timeout-s", "0.2")
    http = (await line_with(process, r"http=(\S+)")).group(1)
    await line_with(process, "ready")
    async with httpx.AsyncClient(base_url=f"http://{http}", timeout=PATIENCE_S) as client:
        answering = asyncio.create_task(client.post("/v1/completions", json={"prompt": "hi"}))
        await decode.next_start()
        process.send_signal(signal.SIGTERM)
        assert (await answering).status_code == 503
        await decode.next_abort()
    async with asyncio.timeout(PATIENCE_S):
        assert await process.wait() == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--host", "0.0.0.0"], "--insecure"),
        (["--routing", "nearest"], "routing"),
        (["--model-dir", "/nowhere"], r"/nowhere/config\.json"),
    ],
)
async def test_a_wrong_option_is_named_and_ends_the_process(launch: Launch, options: list[str], says: str) -> None:
    process = await launch(*options)
    await line_with(process, says)
    assert await process.wait() == 2


@pytest.mark.parametrize("setting", ["grpc_port", "http_port"])
async def test_a_port_that_is_taken_is_named(launch: Launch, setting: str) -> None:
    """Field reports D41 and D42."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await launch(f"--{setting.replace('_', '-')}", str(port))
        await line_with(process, rf"cannot listen on 127.0.0.1:{port}.*\(proxy.{setting}\): end who has it")
        assert await process.wait() == 1


async def test_it_serves_on_all_addresses_of_ipv6(launch: Launch, decode: FakeWorker) -> None:
    """Field report D42."""
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    process = await launch("--host", "::", "--insecure")
    http = (await line_with(process, r"http=(\S+)")).group(1)
    assert http.startswith("[::]:")
    async with httpx.AsyncClient(base_url=f"http://[::1]:{http.rpartition(':')[2]}") as client:
        assert (await client.get("/health")).status_code == 200
