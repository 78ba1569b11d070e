"""A prompt whose KV is partly known already, on the prefill worker, the decode worker or both: the text stays right.

The fake model's tokens depend on every value it reads from the cache, so one wrong block gives another text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from engine.fake_runner import FakeModel, FakeRunner
from rpc import inference_pb2
from tests.fake_model import write_fake_model
from tests.integration.processes import Processes, wait_until

pytestmark = pytest.mark.integration

BLOCK, CHUNK = 16, 64
LENGTHS = [1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]
NUM_TOKENS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    folder = write_fake_model(tmp_path_factory.mktemp("model"), FakeModel(seconds_per_step=0.001))
    engine = {"num_blocks": 512, "scheduling": {"prefill_chunk_size": CHUNK}}
    processes = Processes(folder, tmp_path_factory.mktemp("logs"), engine=engine)
    try:
        processes.start_workers(prefill=1, decode=2)
        processes.start_proxy()
        yield processes
    finally:
        processes.stop()


def only(cluster: Processes, *names: str) -> None:
    """From now on these workers are the members."""
    cluster.controller.set_members([cluster.worker(name).member() for name in names])
    wait_until(lambda: served_by(cluster) == names, 10)


def served_by(cluster: Processes) -> tuple[str, ...]:
    """Nobody while the proxy is between two memberships."""
    try:
        _, finished = cluster.generate([97, 98], 1)
    except grpc.RpcError:
        return ()
    return tuple(name for name in (finished.prefill_worker, finished.decode_worker) if name)


def ask(cluster: Processes, prompt: list[int]) -> inference_pb2.Finished:
    ids, finished = cluster.generate(prompt, NUM_TOKENS)
    assert ids == FakeRunner.expected(prompt, NUM_TOKENS)
    return finished


def ask_all(cluster: Processes, prompts: list[list[int]]) -> list[inference_pb2.Finished]:
    """All at once."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: ask(cluster, prompt), prompts))


def prompt_of(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(97, 123), k=length)


def full_blocks(length: int) -> int:
    """Tokens in the blocks that can be found again: one token at least is always computed or received."""
    return (length - 1) // BLOCK * BLOCK


def test_the_text_is_the_same_wherever_a_prefix_is_known(cluster: Processes) -> None:
    first = {length: prompt_of(length, seed=length) for length in LENGTHS}
    second = {length: prompt_of(length, seed=1000 + length) for length in LENGTHS}
    only(cluster, "prefill-0", "decode-0")
    cold = {length: ask(cluster, prompt) for length, prompt in first.items()}
    assert [finished.usage.cached_tokens for finished in cold.values()] == [0] * len(LENGTHS)
    only(cluster, "prefill-0", "decode-1")
    on_prefill = {length: ask(cluster, prompt) for length, prompt in first.items()}
    only(cluster, "decode-1")
    for prompt in second.values():
        assert ask(cluster, prompt).path == "local"
    only(cluster, "prefill-0", "decode-1")
    on_decode = {length: ask(cluster, prompt) for length, prompt in second.items()}
    on_both = {length: ask(cluster, prompt) for length, prompt in first.items()}
    only(cluster, "prefill-0", "decode-0")
    crowded = [prompt_of(length, seed=2000 + length) for length in LENGTHS]
    ask_all(cluster, crowded * 4)
    only(cluster, "prefill-0", "decode-1")
    ask_all(cluster, crowded * 4)
    for answers in (on_prefill, on_decode, on_both):
        for length, finished in answers.items():
            assert finished.path == "p2p"
            assert finished.usage.cached_tokens == full_blocks(length), length


@pytest.mark.parametrize("length", [4 * BLOCK, 4 * BLOCK + 5])
def test_a_prompt_that_decode_holds_whole_is_answered_again_and_again(cluster: Processes, length: int) -> None:
    only(cluster, "prefill-0", "decode-0")
    prompt = prompt_of(length, seed=77 + length)
    for _ in range(3):
        ask(cluster, prompt)
    for finished in ask_all(cluster, [prompt] * 20):
        assert finished.usage.cached_tokens == full_blocks(length)
    cluster.wait_idle()


def test_half_a_prompt_is_found_when_half_of_it_was_asked_before(cluster: Processes) -> None:
    only(cluster, "prefill-0", "decode-0")
    prompt = prompt_of(8 * BLOCK, seed=5)
    assert ask(cluster, prompt).usage.cached_tokens == 0
    half_new = prompt[: 4 * BLOCK] + prompt_of(4 * BLOCK, seed=6)
    assert ask(cluster, half_new).usage.cached_tokens == 4 * BLOCK
