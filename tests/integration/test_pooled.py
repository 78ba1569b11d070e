"""Pooled mode between real processes over NIXL: any prefill worker, any decode worker, and a pool that may fail.

The fake model's tokens depend on every value it reads from the cache, so one wrong block gives another text.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from bench.fake_model import write_fake_model
from engine.fake_runner import FakeModel, FakeRunner
from rpc import inference_pb2, inference_pb2_grpc
from tests import plain_http
from tests.integration.processes import Processes, WorkerProcess, wait_until
from tests.integration.scrape import check_none_fell, scrape_counts

pytestmark = pytest.mark.integration

BLOCK, CHUNK = 16, 64
LENGTHS = [1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]
NUM_TOKENS = 6
TRANSFER = {"pool_lookup_timeout_s": 4.0}  # a busy machine must not look like a node that stopped
QUICK = {"ucx_net_devices": "lo", "pool_lookup_timeout_s": 0.5, "pool_avoid_s": 1.0}
SEEN_S = 1.8  # after a node stopped every request that was there has seen it
NUM_TIMED = 8  # requests, before and after that
ENGINE = {"num_blocks": 256, "scheduling": {"prefill_chunk_size": CHUNK}}
TINY = {"num_blocks": 20, "scheduling": {"prefill_chunk_size": CHUNK, "preemption": "recompute"}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Two workers of each kind and two pool nodes."""
    folder = write_fake_model(tmp_path_factory.mktemp("model"), FakeModel(seconds_per_step=0.001))
    with Processes(folder, tmp_path_factory.mktemp("logs"), engine=ENGINE, kv_transfer=TRANSFER) as processes:
        processes.start_workers(prefill=2, decode=2)
        processes.start_pool_node()
        processes.start_pool_node()
        processes.start_proxy("--kv-mode=pooled")
        yield processes


def prompt_of(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(97, 123), k=length)


def ask(cluster: Processes, prompt: list[int], n: int = NUM_TOKENS) -> inference_pb2.Finished:
    ids, finished = cluster.generate(prompt, n)
    assert ids == FakeRunner.expected(prompt, n)
    return finished


def only(cluster: Processes, *names: str) -> None:
    """From now on these workers are the members, and all nodes."""
    members = [worker.member() for worker in cluster.workers if worker.name in names]
    cluster.controller.set_members(members, [node.member() for node in cluster.pool_nodes])

    def served_by() -> tuple[str, ...]:
        try:
            finished = cluster.generate([97], 1)[1]
        except grpc.RpcError:  # between two memberships
            return ()
        return finished.prefill_worker, finished.decode_worker

    wait_until(lambda: served_by() == names, 10)


def computed(worker: WorkerProcess) -> float:
    return worker.metric("pdserve_computed_tokens_total", kind="prefill")


def from_pool(worker: WorkerProcess) -> float:
    return worker.metric("pdserve_kv_transfer_tokens_total", mode="pooled")


def check_nothing_is_held(cluster: Processes) -> None:
    cluster.wait_idle()
    wait_until(lambda: not any(node.metric("pdserve_pool_leased_objects") for node in cluster.pool_nodes), 10)


def test_the_text_is_right_and_what_any_worker_computed_is_not_computed_again(cluster: Processes) -> None:
    """Field report D03: cold, from the pool on decode, from the pool on both, and from each worker's own cache."""
    prompts = {length: prompt_of(length, seed=length) for length in LENGTHS}
    full = {length: length // BLOCK * BLOCK for length in LENGTHS}
    cached = {length: max(0, full[length] - 1) // BLOCK * BLOCK for length in LENGTHS}
    only(cluster, "prefill-0", "decode-0")
    for prompt in prompts.values():
        finished = ask(cluster, prompt)
        assert (finished.path, finished.usage.cached_tokens) == ("pooled", 0)
    for prefill, decode in (("prefill-0", "decode-1"), ("prefill-1", "decode-1")):
        only(cluster, prefill, decode)
        worker = cluster.worker(prefill)
        before, received = computed(worker), from_pool(worker)
        for length, prompt in prompts.items():
            assert ask(cluster, prompt).usage.cached_tokens == cached[length], length
        assert computed(worker) - before == sum(full.values()) - sum(cached.values())  # a block of each
        assert from_pool(worker) - received == (sum(cached.values()) if prefill == "prefill-1" else 0)
    check_nothing_is_held(cluster)


def test_a_prefill_worker_that_starts_anew_finds_what_others_computed(cluster: Processes) -> None:
    """Field report D36."""
    prompt = prompt_of(10 * BLOCK, seed=100)
    only(cluster, "prefill-0", "decode-0")
    ask(cluster, prompt)
    for name in ("prefill-1", "prefill-0"):
        if name == "prefill-0":
            cluster.worker(name).kill()
            cluster.replace(cluster.worker(name))
        only(cluster, name, "decode-1")
        before = from_pool(cluster.worker(name))
        ask(cluster, prompt)
        assert from_pool(cluster.worker(name)) - before == 9 * BLOCK
    cluster.publish()


def test_many_at_once_are_right_while_the_prefill_worker_dies(cluster: Processes) -> None:
    shared = prompt_of(5 * BLOCK, seed=200)
    prompts = [[*shared, *prompt_of(20, seed=201 + i)] for i in range(32)]
    only(cluster, "prefill-0", "decode-0")
    cluster.publish()
    with ThreadPoolExecutor(32) as threads:
        asked = [threads.submit(ask, cluster, prompt, 40) for prompt in prompts]
        cluster.worker("prefill-0").kill()
        for finished in asked:
            assert finished.result(60).path == "pooled"
    cluster.replace(cluster.worker("prefill-0"))
    check_nothing_is_held(cluster)


def test_a_node_that_stops_while_it_is_read_and_offered_to_slows_others_once(cluster: Processes) -> None:
    """Field report D38: the pause is seen once by those requests that were there, and by no later one."""
    workers = [cluster.start_worker(role, f"{role}-quick", kv_transfer=QUICK) for role in ("prefill", "decode")]
    only(cluster, *(worker.name for worker in workers))
    node = cluster.pool_nodes[0]
    times: list[tuple[float, float]] = []  # start, duration
    over = threading.Event()

    def work(seed: int) -> None:
        generator = random.Random(seed)
        while not over.is_set():
            started_at = time.monotonic()
            ask(
                cluster,
                [
                    *prompt_of(4 * BLOCK, seed=300 + generator.randrange(4)),
                    *prompt_of(BLOCK, generator.randrange(1 << 30)),
                ],
            )
            times.append((started_at, time.monotonic() - started_at))

    with ThreadPoolExecutor(3) as threads:
        working = [threads.submit(work, seed) for seed in range(3)]
        try:
            wait_until(lambda: len(times) > NUM_TIMED, 60)
            stopped_at = time.monotonic()
            node.signal(signal.SIGSTOP)
            wait_until(lambda: num_begun_since(times, stopped_at + SEEN_S) > NUM_TIMED, 60)
            node.kill()
            killed_at = time.monotonic()
            wait_until(lambda: num_begun_since(times, killed_at) > NUM_TIMED, 60)
        finally:
            over.set()
        for worked in working:
            worked.result(60)
    cluster.pool_nodes.remove(node)
    check_nothing_is_held(cluster)
    for worker in workers:
        worker.kill()
        cluster.workers.remove(worker)
    cluster.start_pool_node(node.name)
    quiet = sorted(duration for at, duration in times if at + duration < stopped_at)
    late = [duration for at, duration in times if at > stopped_at + SEEN_S]
    assert sorted(late)[len(late) // 2] < 2 * quiet[-1]
    only(cluster, "prefill-0", "decode-0")
    ask(cluster, prompt_of(6 * BLOCK, seed=310))
    check_nothing_is_held(cluster)


def num_begun_since(times: list[tuple[float, float]], moment: float) -> int:
    return sum(at > moment for at, _ in times)


def test_cancelled_at_random_moments_requests_leave_nothing(cluster: Processes) -> None:
    """Field report D06."""
    generator = random.Random(6)
    warm = prompt_of(30 * BLOCK, seed=400)
    ask(cluster, warm)
    with grpc.insecure_channel(cluster.grpc) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        for i in range(100):
            prompt = [*warm[: generator.randint(0, 30) * BLOCK], *prompt_of(5 * BLOCK, seed=401 + i)]
            sampling = inference_pb2.Sampling(max_tokens=50, temperature=0, ignore_eos=True)
            request = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=prompt), sampling=sampling)
            call = stub.Generate(request, metadata=[("x-kv-write-back", "true")] if i % 3 == 0 else [])
            time.sleep(generator.choice([0.002, 0.01, 0.03]) * generator.random())
            call.cancel()
    check_nothing_is_held(cluster)
    ask(cluster, prompt_of(255 * BLOCK, seed=600), 8)  # needs every block of both
    check_nothing_is_held(cluster)


def test_with_few_blocks_requests_are_preempted_and_come_back_right(cluster: Processes) -> None:
    """Field reports D08 and D35: with more and with less in the pool than in the worker's cache; no count falls."""
    tiny = cluster.start_worker("decode", "decode-tiny", engine=TINY)
    only(cluster, "prefill-0", "decode-tiny")
    metrics = f"http://{tiny.addresses['metrics']}/metrics"
    counts = scrape_counts(metrics)
    with ThreadPoolExecutor(6) as threads:
        for turn in range(2):
            prompts = [[*prompt_of(3 * BLOCK, seed=500 + i % 2), *prompt_of(5 * turn + 1, seed=i)] for i in range(6)]
            for finished in threads.map(lambda prompt: ask(cluster, prompt, 60), prompts):
                assert finished.path == "pooled"
            before, counts = counts, scrape_counts(metrics)
            check_none_fell(before, counts)
    assert tiny.metric("pdserve_preemptions_total") > 0
    check_nothing_is_held(cluster)
    tiny.kill()
    cluster.workers.remove(tiny)
    cluster.publish()


def test_with_write_back_the_next_turn_finds_the_answer_in_the_pool(cluster: Processes) -> None:
    first = prompt_of(2 * BLOCK, seed=700)
    only(cluster, "prefill-0", "decode-0")
    answer = complete(cluster, first, 5 * BLOCK, {"x-kv-write-back": "true"})
    reply = FakeRunner.expected(first, 5 * BLOCK)
    assert (answer.headers["x-path"], answer.json()["choices"][0]["text"]) == ("pooled", bytes(reply).decode())
    cluster.wait_idle()
    only(cluster, "prefill-1", "decode-1")
    turn = [*first, *reply, *prompt_of(20, seed=701)]
    assert ask(cluster, turn).usage.cached_tokens == 6 * BLOCK  # the last token was never computed
    cluster.publish()


def test_a_request_may_ask_for_another_mode(cluster: Processes) -> None:
    prompt = prompt_of(3 * BLOCK, seed=800)
    for mode in ("pooled", "p2p", "local"):
        answer = complete(cluster, prompt, NUM_TOKENS, {"x-kv-mode": mode})
        assert answer.headers["x-path"] == mode
        assert answer.json()["choices"][0]["text"] == bytes(FakeRunner.expected(prompt, NUM_TOKENS)).decode()
    assert complete(cluster, prompt, 1, {"x-kv-mode": "shared"}).status_code == 400


def complete(cluster: Processes, prompt: list[int], n: int, headers: dict[str, str]) -> httpx.Response:
    body: dict[str, Any] = {"model": "test", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True}
    return plain_http.post(f"{cluster.http}/v1/completions", json=body, headers=headers, timeout=60)


@pytest.mark.long
def test_the_real_models_text_is_the_same_from_the_pool(real_model: Path, tmp_path: Path) -> None:
    engine = {"num_blocks": 64, "max_model_len": 1024}
    prompt = [int(n) for n in random.Random(1).choices(range(1000, 20000), k=150)]
    with Processes(real_model, tmp_path, engine=engine, kv_transfer=TRANSFER) as processes:
        processes.start_workers(prefill=2, decode=1)
        processes.start_pool_node(ram_bytes=32 << 20)
        processes.start_proxy("--kv-mode=pooled")
        texts = []
        for prefill, mode in (("prefill-0", "local"), ("prefill-0", "pooled"), ("prefill-1", "pooled")):
            only(processes, prefill, "decode-0")
            answer = complete(processes, prompt, 8, {"x-kv-mode": mode})
            assert answer.headers["x-path"] == mode
            texts.append(answer.json()["choices"][0]["text"])
        assert texts[0] == texts[1] == texts[2]
        assert from_pool(processes.worker("prefill-1")) == 128
