"""Workers and proxies that hang, die and come back, and clients that go away in every phase: nothing is left behind."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.chaos.relay import Relay
from bench.fake_model import write_fake_model
from engine.fake_runner import FakeModel, FakeRunner
from tests import plain_http
from tests.integration.processes import Processes, WorkerProcess, metric_value, wait_until

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
MODEL = FakeModel(num_layers=4, num_kv_heads=4, head_dim=64, seconds_per_step=0.02, seconds_per_token=0.0004)
DEADLINES = {"lease_s": 6.0, "renew_every_s": 1.0, "silent_peer_s": 4.0, "open_timeout_s": 6.0}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """One prefill worker and two decode workers, whose engines count as stuck after 2 s."""
    folder = write_fake_model(tmp_path_factory.mktemp("model"), MODEL)
    with Processes(
        folder, tmp_path_factory.mktemp("logs"), engine={"num_blocks": 256}, kv_transfer=DEADLINES
    ) as processes:
        processes.start_worker("prefill", stuck={"after_s": 2.0})
        for _ in range(2):
            processes.start_worker("decode", stuck={"after_s": 2.0})
        processes.start_proxy()
        yield processes


def prompt_of(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(97, 123), k=length)


def expected(prompt: list[int], n: int) -> str:
    return bytes(FakeRunner.expected(prompt, n)).decode()


def body_of(prompt: list[int], max_tokens: int, *, stream: bool = False) -> dict[str, Any]:
    return {"model": "test", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": stream}


async def true(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition, PATIENCE_S)


async def test_requests_leave_a_worker_whose_engine_hangs_and_come_back_when_it_goes_on(cluster: Processes) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        prompts = [prompt_of(40, seed) for seed in range(4)]
        asking = [asyncio.create_task(ask(client, cluster, prompt, 60)) for prompt in prompts]
        stuck, other = cluster.worker("decode-0"), cluster.worker("decode-1")
        await true(lambda: stuck.metric("pdserve_num_requests_running") > 0)
        stuck.signal(signal.SIGUSR1)
        answers = [await each for each in asking]
        assert [text for text, _ in answers] == [expected(prompt, 60) for prompt in prompts]
        assert {worker for _, worker in [await ask(client, cluster, p, 2) for p in prompts]} == {other.name}
        stuck.signal(signal.SIGUSR2)
        await true(lambda: cluster.complete([97, 98], 2).headers["x-decode-worker"] == stuck.name)
        assert (await ask(client, cluster, prompts[0], 5))[0] == expected(prompts[0], 5)
    cluster.wait_idle()


async def ask(client: httpx.AsyncClient, cluster: Processes, prompt: list[int], n: int) -> tuple[str, str]:
    """The text, and the decode worker that spoke first."""
    response = await client.post(f"{cluster.http}/v1/completions", json=body_of(prompt, n))
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"], response.headers["x-decode-worker"]


async def test_a_worker_that_is_slow_for_a_moment_stays_and_one_that_dies_costs_no_request(cluster: Processes) -> None:
    """Field report D13: the proxy is not told of the death; after the first connection refused it asks nobody there."""
    asked_again = partial(metric_value, f"{cluster.http}/metrics", "pdserve_retries_total")
    dying, other = cluster.worker("decode-0"), cluster.worker("decode-1")
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        async with stopped([dying]):
            slow = [asyncio.create_task(ask(client, cluster, prompt_of(30, seed), 4)) for seed in range(8)]
            await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
        assert [text for text, _ in await asyncio.gather(*slow)] == [expected(prompt_of(30, n), 4) for n in range(8)]
        await true(lambda: cluster.complete([97, 98], 2).headers["x-decode-worker"] == dying.name)
        prompts = [prompt_of(30, seed) for seed in range(10, 26)]
        asking = [asyncio.create_task(ask(client, cluster, prompt, 40)) for prompt in prompts]
        await true(lambda: dying.metric("pdserve_num_requests_running") > 0)
        dying.kill()
        assert [text for text, _ in await asyncio.gather(*asking)] == [expected(prompt, 40) for prompt in prompts]
        before = asked_again()
        answers = [await ask(client, cluster, prompt, 2) for prompt in prompts]
        assert {worker for _, worker in answers} == {other.name}
        assert asked_again() == before
    await asyncio.to_thread(cluster.replace, dying)
    await true(lambda: cluster.complete([97, 98], 2).headers["x-decode-worker"] == dying.name)
    cluster.wait_idle()


async def test_a_proxy_that_starts_while_the_controller_is_paused_serves_from_its_first_ready_on(
    cluster: Processes, tmp_path: Path
) -> None:
    """Field reports D43 and D15: before it is ready it says 503; its models, its readiness and its answers agree."""
    living = [worker.process.pid for worker in cluster.workers]
    with Processes(cluster.model_dir, tmp_path) as other:
        other.controller.set_members([worker.member() for worker in cluster.workers])
        controller = Relay("127.0.0.1", int(other.controller.address.rpartition(":")[2]))
        await controller.start()
        through = f"--controller=127.0.0.1:{controller.port}"
        async with httpx.AsyncClient(timeout=PATIENCE_S, limits=httpx.Limits(max_connections=None)) as client:
            for num_requests in (200, 20):  # the second time after its death
                controller.stall()
                starting = asyncio.create_task(asyncio.to_thread(other.start_proxy, through))
                await true(lambda: status(f"{other.http}/health") == 200)
                assert status(f"{other.http}/ready") == 503
                early = await client.post(f"{other.http}/v1/completions", json=body_of([97], 1))
                assert early.status_code == 503
                controller.flow()
                await starting
                await all_serve(client, other, num_requests)
                controller.stall()  # it serves on with whom it knows
                await all_serve(client, other, 10)
                open_streams = [asyncio.create_task(ask(client, other, prompt_of(50, n), 1500)) for n in range(6)]
                await true(lambda: sum(w.metric("pdserve_num_requests_running") for w in cluster.workers) >= 2)
                assert await asyncio.to_thread(cluster.text, [97, 98], 4) == expected([97, 98], 4)
                other.kill_proxy()
                for ended in await asyncio.gather(*open_streams, return_exceptions=True):
                    assert isinstance(ended, httpx.TransportError)
                await true(lambda: all(worker.is_idle for worker in cluster.workers))
        await controller.close()
    assert [worker.process.pid for worker in cluster.workers if worker.process.poll() is None] == living


def status(url: str) -> int:
    """0 where nobody answers."""
    try:
        return plain_http.get(url, timeout=2).status_code
    except httpx.TransportError:
        return 0


async def all_serve(client: httpx.AsyncClient, cluster: Processes, num_requests: int) -> None:
    """At once; and the proxy says that they can."""
    answers = await asyncio.gather(*(ask(client, cluster, prompt_of(5, seed), 2) for seed in range(num_requests)))
    assert {worker for _, worker in answers} == {"decode-0", "decode-1"}
    assert (await client.get(f"{cluster.http}/ready")).status_code == 200
    models = (await client.get(f"{cluster.http}/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["test"]


@asynccontextmanager
async def stopped(workers: list[WorkerProcess]) -> AsyncIterator[None]:
    for worker in workers:
        worker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for worker in workers:
            worker.signal(signal.SIGCONT)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("moment", ["queued", "prefill", "done", "transfer", "decode"])
async def test_a_client_that_drops_leaves_nothing_in_whatever_phase(
    cluster: Processes, moment: str, stream: bool
) -> None:
    """Field report D04: at P's queue, in mid-prefill, between P's end and D's, in mid-transfer, and in mid-decode."""
    prefill = cluster.worker("prefill-0")
    decodes = [worker for worker in cluster.workers if worker.role == "decode"]
    num_cancelled = metric_value(f"{cluster.http}/metrics", "pdserve_cancelled_total")
    computed = prefill.metric("pdserve_computed_tokens_total")
    received = sum(worker.metric("pdserve_kv_transfer_tokens_total") for worker in decodes)
    seed = random.getrandbits(32)
    prompts = [prompt_of(700, seed + n) for n in range(3 if moment == "queued" else 1)]
    conditions: dict[str, Callable[[], bool]] = {
        "queued": lambda: prefill.metric("pdserve_num_requests_waiting") > 0,
        "prefill": lambda: prefill.metric("pdserve_num_requests_running") > 0,
        "done": lambda: prefill.metric("pdserve_computed_tokens_total") >= computed + 700,
        "transfer": lambda: sum(w.metric("pdserve_kv_transfer_tokens_total") for w in decodes) > received,
        "decode": lambda: any(w.metric("pdserve_num_requests_running") for w in decodes),
    }
    async with stopped(decodes if moment == "done" else []):
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            bodies = [body_of(prompt, 2000, stream=stream) for prompt in prompts]
            asking = [asyncio.create_task(client.post(f"{cluster.http}/v1/completions", json=body)) for body in bodies]
            await true(conditions[moment])
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        await true(lambda: metric_value(f"{cluster.http}/metrics", "pdserve_requests_in_flight") == 0)
    assert metric_value(f"{cluster.http}/metrics", "pdserve_cancelled_total") == num_cancelled + len(prompts)
    cluster.wait_idle()


async def test_what_cancelled_transfers_held_comes_back_by_timer_alone(cluster: Processes) -> None:
    """Field report D05: the pool of P is full, decode workers are stopped, the proxy is gone, and nothing is sent."""
    prefill = cluster.worker("prefill-0")
    decodes = [worker for worker in cluster.workers if worker.role == "decode"]
    async with stopped(decodes), httpx.AsyncClient(timeout=PATIENCE_S) as client:
        bodies = [body_of(prompt_of(1200, 9000 + n), 4) for n in range(3)]
        asking = [asyncio.create_task(client.post(f"{cluster.http}/v1/completions", json=body)) for body in bodies]
        await true(lambda: prefill.metric("pdserve_kv_blocks", state="free") < 60)
        cluster.kill_proxy()
        await asyncio.gather(*asking, return_exceptions=True)
        await true(lambda: prefill.is_idle)
    await asyncio.to_thread(cluster.start_proxy)
    cluster.wait_idle()
    prompt = prompt_of(3900, 1)
    await true(lambda: cluster.complete(prompt, 4).headers["x-path"] == "p2p")
    assert cluster.text(prompt, 4) == expected(prompt, 4)
