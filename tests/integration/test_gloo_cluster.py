"""A whole stack whose KV is sent and received instead of read: what NCCL does with GPUs, Gloo does here."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from bench.fake_model import write_fake_model
from engine.fake_runner import FakeModel
from tests import plain_http
from tests.integration.processes import Processes, WorkerProcess, wait_until
from tests.integration.test_handoff import DEADLINES, expected, prompt_of

pytestmark = pytest.mark.integration

MODEL = FakeModel(num_layers=4, num_kv_heads=4, head_dim=64, seconds_per_step=0.002, seconds_per_token=0.0005)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Two prefill and two decode workers, whose number each test chooses."""
    folder = write_fake_model(tmp_path_factory.mktemp("model"), MODEL)
    kv_transfer = {**DEADLINES, "transports": ["gloo"]}
    with Processes(folder, tmp_path_factory.mktemp("logs"), kv_transfer=kv_transfer) as processes:
        processes.start_workers(prefill=2, decode=2)
        processes.start_proxy()
        yield processes


def use(cluster: Processes, workers: list[WorkerProcess]) -> None:
    """The others leave the membership, and live on."""
    cluster.controller.set_members([worker.member() for worker in workers])


def complete(cluster: Processes, prompt: list[int], request_id: str | None) -> httpx.Response:
    body = {"model": "test", "prompt": prompt, "max_tokens": 8, "temperature": 0}
    headers = {} if request_id is None else {"x-request-id": request_id}
    return plain_http.post(f"{cluster.http}/v1/completions", json=body, headers=headers, timeout=60)


@pytest.mark.parametrize("num_pairs", [1, 2])
def test_both_sides_mean_the_same_request(cluster: Processes, num_pairs: int) -> None:
    """Field report D11: whether or not the client named it, and however many workers there are."""
    workers = [cluster.worker(f"{role}-{n}") for role in ("prefill", "decode") for n in range(num_pairs)]
    use(cluster, workers)
    prompts = [prompt_of(40 + 20 * n, seed=10 * num_pairs + n) for n in range(8)]
    ids = [f"request-{num_pairs}-{n}" if n % 2 else None for n in range(8)]
    before = [worker.metric("pdserve_kv_transfer_bytes_total", transport="gloo") for worker in workers]
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt, name: complete(cluster, prompt, name), prompts, ids))
    assert [answer.json()["choices"][0]["text"] for answer in answers] == [expected(prompt) for prompt in prompts]
    assert {answer.headers["x-path"] for answer in answers} == {"p2p"}
    assert [answer.headers["x-request-id"] for answer in answers][1::2] == ids[1::2]
    for worker, bytes_before in zip(workers, before, strict=True):
        assert worker.metric("pdserve_kv_transfer_bytes_total", transport="gloo") > bytes_before
    cluster.wait_idle()


def test_a_prefill_worker_killed_while_it_sends_ends_in_the_right_text(cluster: Processes) -> None:
    doomed, other, decode = (cluster.worker(name) for name in ("prefill-0", "prefill-1", "decode-0"))
    use(cluster, [doomed, decode])
    prompt = prompt_of(900, seed=7)
    computed = doomed.metric("pdserve_computed_tokens_total", kind="prefill")
    failures = decode.metric("pdserve_kv_transfer_failures_total")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(complete, cluster, prompt, None)
        wait_until(lambda: doomed.metric("pdserve_computed_tokens_total", kind="prefill") > computed + 300, 20)
        doomed.kill()
        assert answer.result(40).json()["choices"][0]["text"] == expected(prompt)
    assert decode.metric("pdserve_kv_transfer_failures_total") > failures
    use(cluster, [other, decode])
    wait_until(lambda: complete(cluster, prompt_of(60, seed=8), None).headers["x-path"] == "p2p", 10)
    cluster.wait_idle()
