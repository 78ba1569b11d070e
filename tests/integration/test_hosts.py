"""Prefill, decode and proxy on hosts of their own: right text over a slow link and through cuts, and p2p after them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import httpx
import pytest

from bench.fake_model import write_fake_model
from tests.hosts import Network, network
from tests.integration.processes import Processes, WorkerProcess, wait_until
from tests.integration.test_handoff import DEADLINES, MODEL, expected, prompt_of

pytestmark = pytest.mark.integration

BLOCK_BYTES = 128 * 1024
SLOW_MEGABITS = 20.0
HEALED_WITHIN_S = 10.0


@dataclass
class Lan:
    """The proxy on h0, a prefill worker on each of h1 and h3, the decode worker on h2."""

    network: Network
    processes: Processes
    seeds: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.proxy, self.near, self.at_decode, self.other = self.network.hosts
        self.prefill = self.processes.worker("prefill-0")
        self.second = self.processes.worker("prefill-1")
        self.decode = self.processes.worker("decode-0")

    def only(self, *prefill: WorkerProcess) -> None:
        """From now on the proxy knows these prefill workers, and no other."""
        self.processes.controller.set_members([worker.member() for worker in (*prefill, self.decode)])
        prompts = [prompt_of(20, seed=10_000 + next(self.seeds)) for _ in range(10)]
        names = {worker.name for worker in prefill}
        wait_until(lambda: {self.ask(prompt).headers.get("x-prefill-worker") for prompt in prompts} == names, 20)

    def new_prompt(self, length: int) -> list[int]:
        return prompt_of(length, seed=next(self.seeds))

    def ask(self, prompt: list[int], num_tokens: int = 8) -> httpx.Response:
        """The answer, whose text is the right one."""
        response = self.processes.complete(prompt, num_tokens)
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["text"] == expected(prompt, num_tokens)
        return response

    def is_p2p(self) -> bool:
        return self.ask(self.new_prompt(100)).headers["x-path"] == "p2p"

    def received_bytes(self) -> float:
        return self.decode.metric("pdserve_kv_transfer_bytes_total")

    def nothing_died(self) -> bool:
        return all(worker.process.poll() is None for worker in self.processes.workers)


@pytest.fixture(scope="module")
def lan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    folder = tmp_path_factory.mktemp("hosts")
    with network(4) as net:
        model = write_fake_model(folder / "model", MODEL)
        with Processes(model, folder, kv_transfer=DEADLINES, own_address=net.own_address) as processes:
            proxy, near, at_decode, other = net.hosts
            with ThreadPoolExecutor(3) as pool:
                starts = [
                    pool.submit(processes.start_worker, "prefill", "prefill-0", near),
                    pool.submit(processes.start_worker, "prefill", "prefill-1", other),
                    pool.submit(processes.start_worker, "decode", "decode-0", at_decode),
                ]
                for start in starts:
                    start.result()
            processes.start_proxy("--insecure", host=proxy)
            yield Lan(net, processes)


@pytest.fixture(autouse=True)
def nothing_is_left(lan: Lan) -> Iterator[None]:
    yield
    lan.processes.wait_idle()
    assert lan.nothing_died()
    assert lan.decode.metric("pdserve_staging_slots", state="quarantined") == 0


def test_kv_crosses_a_slow_link_at_the_speed_of_the_link(lan: Lan) -> None:
    lan.only(lan.prefill)
    prompt = lan.new_prompt(400)
    before = lan.received_bytes()
    with lan.network.limited(lan.near, SLOW_MEGABITS):
        started_at = time.monotonic()
        assert lan.ask(prompt).headers["x-path"] == "p2p"
        took_s = time.monotonic() - started_at
    num_bytes = lan.received_bytes() - before
    assert num_bytes == 400 / 16 * BLOCK_BYTES
    share = num_bytes * 8 / (took_s * SLOW_MEGABITS * 1e6)
    print(f"{share:.0%} of {SLOW_MEGABITS:g} Mbit/s")
    assert 0.5 < share < 1.2  # more than 1: the limiter's bucket


def during_a_transfer(lan: Lan, prompt: list[int], pool: ThreadPoolExecutor) -> Future[httpx.Response]:
    """The answer to come; half of the prompt's KV has been read."""
    before = lan.prefill.metric("pdserve_computed_tokens_total", kind="prefill")
    answer = pool.submit(lan.ask, prompt)
    wanted = before + len(prompt) / 2
    wait_until(lambda: lan.prefill.metric("pdserve_computed_tokens_total", kind="prefill") >= wanted, 20)
    return answer


@pytest.mark.parametrize("fault", ["cut", "unplugged"])
def test_a_link_that_is_lost_in_a_transfer_costs_a_deadline_and_heals(lan: Lan, fault: str) -> None:
    lan.only(lan.prefill)
    faults: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "cut": lambda: lan.network.cut(lan.near, lan.at_decode),
        "unplugged": lambda: lan.network.unplugged(lan.near),
    }
    with lan.network.limited(lan.near, SLOW_MEGABITS), ThreadPoolExecutor(1) as pool:
        answer = during_a_transfer(lan, lan.new_prompt(800), pool)
        with faults[fault]():
            started_at = time.monotonic()
            assert answer.result(40).headers["x-path"] == "local"
            assert time.monotonic() - started_at < 8
    healed_at = time.monotonic()
    wait_until(lan.is_p2p, HEALED_WITHIN_S)
    print(f"p2p again {time.monotonic() - healed_at:.1f} s after the link was back")


def test_of_three_links_one_is_cut_and_the_others_are_used(lan: Lan) -> None:
    lan.only(lan.prefill, lan.second)
    with lan.network.cut(lan.near, lan.at_decode), ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lan.ask, [lan.new_prompt(100) for _ in range(6)]))
        assert {answer.headers["x-path"] for answer in answers} == {"p2p"}
        assert {answer.headers["x-prefill-worker"] for answer in answers} == {"prefill-1"}
    wait_until(lambda: lan.ask(lan.new_prompt(100)).headers["x-prefill-worker"] == "prefill-0", HEALED_WITHIN_S)


def test_a_prefill_worker_that_the_proxy_cannot_reach_is_gone_around(lan: Lan) -> None:
    lan.only(lan.prefill, lan.second)
    with lan.network.cut(lan.proxy, lan.near, lan.prefill.port), ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lan.ask, [lan.new_prompt(100) for _ in range(4)]))
        assert {answer.headers["x-prefill-worker"] for answer in answers} == {"prefill-1"}
    wait_until(lambda: lan.ask(lan.new_prompt(100)).headers["x-prefill-worker"] == "prefill-0", HEALED_WITHIN_S)


def test_a_stream_goes_on_after_a_short_cut_between_proxy_and_decode_worker(lan: Lan) -> None:
    with ThreadPoolExecutor(1) as pool:
        before = lan.decode.metric("pdserve_computed_tokens_total", kind="decode")

        def spoken() -> float:
            return lan.decode.metric("pdserve_computed_tokens_total", kind="decode") - before

        answer = pool.submit(lan.ask, lan.new_prompt(50), 300)
        wait_until(lambda: spoken() > 20, 20)
        with lan.network.cut(lan.proxy, lan.at_decode):
            wait_until(lambda: spoken() > 60, 20)
        answer.result(HEALED_WITHIN_S)
