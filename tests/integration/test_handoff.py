"""The hand-off between real processes: KV really moves; a death or a stall ends in right text or a clear error."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import httpx
import pytest

from bench.fake_model import write_fake_model
from deploy.timeline.picture import Panel, draw
from deploy.timeline.rows import timeline
from deploy.trace.cluster_trace import cluster_trace
from deploy.trace.recorder import Recorder, Target
from engine.fake_runner import FakeModel, FakeRunner
from tests import plain_http
from tests.integration.processes import Processes, wait_until
from tests.integration.test_api import expected_text
from tests.trace_format import check_trace

pytestmark = pytest.mark.integration

# Deadlines short enough to wait for; blocks of 128 KiB, so a prompt is many reads; TCP, so a stopped peer stalls.
DEADLINES = {
    "ucx_tls": "tcp",
    "staging_slots": 8,
    "staging_slot_bytes": 1 << 18,
    "max_quarantined_slots": 7,
    "handshake_timeout_s": 2.0,
    "open_timeout_s": 2.0,
    "lease_s": 4.0,
    "renew_every_s": 0.5,
    "transfer_timeout_s": 1.0,
    "verdict_timeout_s": 1.0,
    "silent_peer_s": 2.0,
}
MODEL = FakeModel(num_layers=4, num_kv_heads=4, head_dim=64, seconds_per_step=0.002, seconds_per_token=0.0004)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    """A pair that a test may break."""
    with Processes(write_fake_model(tmp_path / "model", MODEL), tmp_path, kv_transfer=DEADLINES) as processes:
        processes.start_workers()
        processes.start_proxy()
        yield processes


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(97, 123), k=length)


def expected(prompt: list[int], n: int = 8) -> str:
    return bytes(FakeRunner.expected(prompt, n)).decode()


def test_kv_moves_and_decode_computes_no_prompt_token(fake_cluster: Processes) -> None:
    prefill, decode = fake_cluster.worker("prefill-0"), fake_cluster.worker("decode-0")
    before = decode.metric("pdserve_kv_transfer_tokens_total")
    computed = decode.metric("pdserve_computed_tokens_total", kind="prefill")
    by_prefill = prefill.metric("pdserve_computed_tokens_total", kind="prefill")
    prompt = prompt_of(300, seed=1)
    response = fake_cluster.complete(prompt, 8)
    assert response.json()["choices"][0]["text"] == expected(prompt)
    assert response.headers["x-path"] == "p2p"
    assert decode.metric("pdserve_kv_transfer_tokens_total") - before == 300
    assert decode.metric("pdserve_computed_tokens_total", kind="prefill") == computed
    assert prefill.metric("pdserve_computed_tokens_total", kind="prefill") - by_prefill == 300
    fake_cluster.wait_idle()


def test_the_trace_shows_that_prefill_goes_on_while_decode_speaks(fake_cluster: Processes, tmp_path: Path) -> None:
    """Three requests, each sent when the one before it speaks: P computes it while D generates."""
    sizes = {"first": (512, 50), "second": (128, 200), "third": (2048, 30)}
    with ThreadPoolExecutor(len(sizes)) as pool:
        running = []
        for seed, (request_id, (num_prompt, num_tokens)) in enumerate(sizes.items(), 20):
            speaks = threading.Event()
            prompt = prompt_of(num_prompt, seed=seed)
            running.append(pool.submit(fake_cluster.generate, prompt, num_tokens, request_id, speaks.set))
            assert speaks.wait(20)
        assert [len(answer.result(60)[0]) for answer in running] == [50, 200, 30]
    fake_cluster.wait_idle()
    warnings: list[str] = []
    targets = [Target("proxy", fake_cluster.grpc)]
    targets += [Target(worker.name, worker.addresses["grpc"]) for worker in fake_cluster.workers]
    trace = cluster_trace(Recorder(lambda: targets, warnings.append).last(60))
    events = trace.events()
    check_trace(events)
    assert warnings == []

    def times(kind: str, request: str) -> list[tuple[int, int]]:
        slices = [e for e in events if e.get("cat") == kind and e["args"]["request"].startswith(f"{request}.")]
        return [(e["ts"], e["ts"] + e["dur"]) for e in slices]

    def overlap(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> bool:
        return any(start < end and begin < until for start, until in some for begin, end in others)

    for request, (num_prompt, num_tokens) in sizes.items():
        chunks = [e for e in events if e.get("cat") == "prefill" and e["args"]["request"].startswith(f"{request}.")]
        assert sum(int(e["name"].rpartition(" ")[2]) for e in chunks) == num_prompt
        assert len(times("decode", request)) == num_tokens - 1  # P sampled the first token
        assert times("read", request)
        assert times("handoff", request)[0][1] <= times("decode", request)[0][0]
    assert overlap(times("prefill", "second"), times("decode", "first"))
    assert overlap(times("prefill", "third"), times("decode", "second"))
    assert overlap(times("read", "third"), times("prefill", "third"))  # the hand-off begins before its prefill ends
    arrows = [(e["ph"], trace.processes[e["pid"] - 1].role) for e in events if e.get("cat") == "arrow"]
    num_handoffs = sum(1 for e in events if e.get("cat") == "handoff")
    assert sorted(arrows) == [("f", "decode")] * num_handoffs + [("s", "prefill")] * num_handoffs
    assert [e["args"]["ended"] for e in events if e.get("cat") == "lease"][-3:] == ["committed"] * 3
    draw([Panel("P and D", timeline(events))], tmp_path / "picture.svg")


def test_a_prefill_worker_that_shares_no_layout_costs_no_request_and_is_named(fake_cluster: Processes) -> None:
    """Field report D40: blocks of another size, so it is refused by name, and the decode worker computes the prompt."""
    odd = fake_cluster.start_worker("prefill", "prefill-odd", engine={"num_blocks": 256, "block_size": 8})
    decode = fake_cluster.worker("decode-0")
    try:
        fake_cluster.controller.set_members([odd.member(), decode.member()])
        wait_until(lambda: fake_cluster.complete([97, 98]).headers["x-path"] == "local", 10)
        refused = decode.metric("pdserve_kv_transfer_failures_total", reason="incompatible")
        prompt, started_at = prompt_of(100, seed=40), time.monotonic()
        response = fake_cluster.complete(prompt)
        assert response.json()["choices"][0]["text"] == expected(prompt)
        assert response.headers["x-path"] == "local"
        assert time.monotonic() - started_at < 5
        assert decode.metric("pdserve_kv_transfer_failures_total", reason="incompatible") > refused
        log = (fake_cluster.log_dir / f"{decode.addresses['incarnation']}.log").read_text()
        assert "block_size is 8 here and 16 on the peer" in log
    finally:
        odd.kill()
        fake_cluster.workers.remove(odd)
        fake_cluster.publish()
    wait_until(lambda: fake_cluster.complete([97, 98]).headers["x-path"] == "p2p", 10)


def test_decode_speaks_and_prefill_computes_while_a_hand_off_is_open(cluster: Processes) -> None:
    prefill, decode = cluster.worker("prefill-0"), cluster.worker("decode-0")
    during: list[tuple[float, float]] = []
    with ThreadPoolExecutor(2) as pool:
        speaking = pool.submit(cluster.complete, "speak on", 1500)
        wait_until(lambda: decode.metric("pdserve_computed_tokens_total", kind="decode") > 0, 20)
        answer = pool.submit(cluster.complete, prompt_of(2000))
        while not wait([answer], timeout=0.05).done:
            if prefill.metric("pdserve_kv_leases_active") == 1:
                spoken = decode.metric("pdserve_computed_tokens_total", kind="decode")
                during.append((spoken, prefill.metric("pdserve_computed_tokens_total", kind="prefill")))
        assert answer.result().json()["choices"][0]["text"] == expected(prompt_of(2000))
        assert speaking.result(60).json()["choices"][0]["text"] == expected_text("speak on", 1500)
    first, last = during[0], during[-1]
    assert last[0] > first[0]
    assert last[1] > first[1]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.88])  # the last: all but the last chunk is computed
def test_prefill_killed_in_the_middle_ends_in_the_right_text(cluster: Processes, share: float) -> None:
    """Field report D01."""
    prefill, decode = cluster.worker("prefill-0"), cluster.worker("decode-0")
    prompt = prompt_of(2000)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(cluster.complete, prompt)
        wait_until(lambda: prefill.metric("pdserve_computed_tokens_total", kind="prefill") >= share * 2000, 20)
        prefill.kill()
        assert answer.result(40).json()["choices"][0]["text"] == expected(prompt)
    assert decode.metric("pdserve_kv_transfer_failures_total") == 1
    replacement = cluster.replace(prefill)
    wait_until(lambda: cluster.complete(prompt_of(50, seed=2)).headers["x-path"] == "p2p", 10)
    assert replacement.metric("pdserve_computed_tokens_total", kind="prefill") > 0
    cluster.wait_idle()


def test_a_stopped_prefill_worker_costs_one_deadline_and_is_usable_again(cluster: Processes) -> None:
    prefill, decode = cluster.worker("prefill-0"), cluster.worker("decode-0")
    prompt = prompt_of(2000)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(cluster.complete, prompt)
        wait_until(lambda: prefill.metric("pdserve_computed_tokens_total", kind="prefill") >= 1000, 20)
        prefill.signal(signal.SIGSTOP)
        running = pool.submit(cluster.complete, "decode goes on", 100)
        assert answer.result(40).json()["choices"][0]["text"] == expected(prompt)
        assert running.result(40).json()["choices"][0]["text"] == expected_text("decode goes on", 100)
    prefill.signal(signal.SIGCONT)
    wait_until(lambda: cluster.complete(prompt_of(60, seed=3)).headers["x-path"] == "p2p", 20)
    cluster.wait_idle()
    for worker in (prefill, decode):
        assert worker.metric("pdserve_staging_slots", state="quarantined") == 0


def test_a_stopped_decode_worker_leaves_nothing_on_prefill(cluster: Processes) -> None:
    prefill, decode = cluster.worker("prefill-0"), cluster.worker("decode-0")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(cluster.complete, prompt_of(2000))
        wait_until(lambda: prefill.metric("pdserve_computed_tokens_total", kind="prefill") >= 1000, 20)
        decode.signal(signal.SIGSTOP)
        wait_until(lambda: prefill.is_idle, 40)
        decode.signal(signal.SIGCONT)
        response = answer.result(60)
    if response.status_code == 200:
        assert response.json()["choices"][0]["text"] == expected(prompt_of(2000))
    else:
        assert response.status_code in (502, 503, 504), response.text
    wait_until(lambda: cluster.complete([97, 98]).status_code == 200, 20)
    cluster.wait_idle()


def test_decode_killed_while_it_speaks_is_continued_without_a_seam(cluster: Processes) -> None:
    """Field report D22: no text comes twice."""
    second = cluster.start_worker("decode", "decode-1")
    wait_until(lambda: cluster.complete([97, 98]).headers["x-decode-worker"] == second.name, 10)
    prompt, killed = prompt_of(40), threading.Event()
    body = {"model": "test", "prompt": prompt, "max_tokens": 300, "temperature": 0, "stream": True}
    text = ""
    with plain_http.stream("POST", f"{cluster.http}/v1/completions", json=body, timeout=60) as response:
        speaker = cluster.worker(response.headers["x-decode-worker"])
        for line in response.iter_lines():
            if line.startswith("data: {"):
                text += httpx.Response(200, text=line[6:]).json()["choices"][0]["text"]
                if len(text) >= 10 and not killed.is_set():
                    killed.set()
                    speaker.kill()
    assert [w.process.poll() is None for w in cluster.workers].count(False) == 1
    assert text == expected(prompt, 300)


def test_a_new_prefill_incarnation_is_used_while_decode_stays(cluster: Processes) -> None:
    decode = cluster.worker("decode-0")
    for n in range(2):
        prompt = prompt_of(100, seed=n)
        assert cluster.complete(prompt).json()["choices"][0]["text"] == expected(prompt)
        old = cluster.worker("prefill-0")
        old.kill()
        cluster.replace(old)
        wait_until(lambda n=n: cluster.complete(prompt_of(90, seed=50 + n)).headers["x-path"] == "p2p", 10)  # type: ignore[misc]
    assert decode.process.poll() is None
    cluster.wait_idle()
