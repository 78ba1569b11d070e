"""A prompt whose KV is partly known already, on the prefill worker, the decode worker or both: the text stays right.

The fake model's tokens depend on every value it reads from the cache, so one wrong block gives another text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import grpc
import pytest

from bench.fake_model import write_fake_model
from engine.fake_runner import FakeModel, FakeRunner
from rpc import inference_pb2
from tests.integration.processes import Processes, WorkerProcess, metric_value, wait_until

pytestmark = pytest.mark.integration

BLOCK, CHUNK = 16, 64
LENGTHS = [1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]
AT_ONCE = 16
NUM_TOKENS = 3  # the first by the prefill worker, the others from the KV that the decode worker has then


@dataclass(frozen=True, slots=True)
class Way:
    """How KV gets to the decode worker."""

    mode: str
    transport: str = "nixl"

    def known_to_prefill(self, length: int) -> int:
        """Tokens that a prefill worker finds again of a prompt it has computed: of its full blocks, when pooled."""
        match self.mode:
            case "local":
                return 0
            case "pooled":
                return full_blocks(length // BLOCK * BLOCK)
            case _:
                return full_blocks(length)


WAYS = {
    "p2p over nixl": Way("p2p"),
    "p2p over gloo": Way("p2p", "gloo"),
    "pooled": Way("pooled"),
    "local": Way("local"),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Workers that have both transports, and a pool that a request may ask for."""
    folder = write_fake_model(tmp_path_factory.mktemp("model"), FakeModel(seconds_per_step=0.001))
    engine = {"num_blocks": 640, "scheduling": {"prefill_chunk_size": CHUNK}}
    kv_transfer = {"transports": ["nixl", "gloo"], "pool_lookup_timeout_s": 4.0}
    with Processes(folder, tmp_path_factory.mktemp("logs"), engine=engine, kv_transfer=kv_transfer) as processes:
        processes.start_workers(prefill=1, decode=2)
        processes.start_pool_node()
        processes.start_proxy("--local-prefill=by_cost")
        yield processes


def only(cluster: Processes, *names: str, transport: str = "nixl") -> None:
    """From now on these workers are the members, and this is all they have to hand KV over with."""
    members = [cluster.worker(name).member() for name in names]
    for member in members:
        member.transports[:] = [transport]
    cluster.controller.set_members(members, [node.member() for node in cluster.pool_nodes])
    wait_until(lambda: served_by(cluster) == names, 10)


def served_by(cluster: Processes) -> tuple[str, ...]:
    """Nobody while the proxy is between two memberships."""
    try:
        _, finished = cluster.generate([97, 98], 1, kv_mode="p2p")
    except grpc.RpcError:
        return ()
    return tuple(name for name in (finished.prefill_worker, finished.decode_worker) if name)


def ask(cluster: Processes, prompt: list[int], mode: str = "p2p") -> inference_pb2.Finished:
    ids, finished = cluster.generate(prompt, NUM_TOKENS, kv_mode=mode)
    assert ids == FakeRunner.expected(prompt, NUM_TOKENS), (mode, len(prompt))
    assert finished.path == mode
    return finished


def ask_all(cluster: Processes, prompts: Sequence[list[int]], mode: str = "p2p") -> list[inference_pb2.Finished]:
    """All at once."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: ask(cluster, prompt, mode), prompts))


def prompt_of(length: int, seed: object) -> list[int]:
    return random.Random(f"{seed}/{length}").choices(range(97, 123), k=length)


def full_blocks(length: int) -> int:
    """Tokens in the blocks that can be found again: one token at least is always computed or received."""
    return max(0, length - 1) // BLOCK * BLOCK


class Grid:
    """Prompts of every length, one of each to ask alone and `AT_ONCE` to ask together, that nobody has asked before."""

    def __init__(self, seed: str) -> None:
        self.alone = [prompt_of(length, seed) for length in LENGTHS]
        self.at_once = [prompt_of(length, f"{seed}/{n}") for n in range(AT_ONCE // len(LENGTHS)) for length in LENGTHS]

    def ask(self, cluster: Processes, mode: str) -> list[inference_pb2.Finished]:
        return [*(ask(cluster, prompt, mode) for prompt in self.alone), *ask_all(cluster, self.at_once, mode)]

    def total(self, found: Callable[[int], int]) -> int:
        """Over the prompts, of what is found of one of such a length."""
        return sum(found(len(prompt)) for prompt in (*self.alone, *self.at_once))


def hits(worker: WorkerProcess) -> float:
    return worker.metric("pdserve_prefix_cache_hits_total")


def received(worker: WorkerProcess, way: Way) -> float:
    return worker.metric("pdserve_kv_transfer_bytes_total", transport=way.transport, mode=way.mode, direction="in")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_text_is_the_same_wherever_a_prefix_is_known(cluster: Processes, way: Way) -> None:
    """Field report D03: by every way, each length alone and 16 at once, known to neither, one or both workers."""
    first, second = Grid(f"{way}, first"), Grid(f"{way}, second")
    prefill, decode = cluster.worker("prefill-0"), cluster.worker("decode-1")

    def found(grid: Grid) -> tuple[float, float]:
        """Tokens that the prefill worker and the decode worker know of the grid's prompts."""
        before = hits(prefill), hits(decode)
        grid.ask(cluster, way.mode)
        return hits(prefill) - before[0], hits(decode) - before[1]

    only(cluster, "prefill-0", "decode-0", transport=way.transport)
    for finished in first.ask(cluster, way.mode):
        assert finished.usage.cached_tokens == 0
    only(cluster, "prefill-0", "decode-1", transport=way.transport)
    moved = received(decode, way)
    known = first.total(way.known_to_prefill), first.total(full_blocks)
    assert found(first) == (known[0], 0)
    assert found(first) == known
    ask_all(cluster, [*second.alone, *second.at_once], "local")
    assert found(second) == (0, known[1])
    assert (received(decode, way) > moved) is (way.mode != "local")
    cluster.wait_idle()


@pytest.mark.parametrize("length", [4 * BLOCK, 4 * BLOCK + 5])
def test_a_prompt_that_decode_holds_whole_is_answered_again_and_again(cluster: Processes, length: int) -> None:
    """Field report D07."""
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


def test_a_prompt_comes_back_to_where_its_kv_is(cluster: Processes) -> None:
    """The proxy hears of it from the workers, and nothing is handed over then."""
    cluster.publish()  # all of them are members
    prompt = prompt_of(3 * CHUNK + 1, "comes back")

    def answer() -> inference_pb2.Finished:
        ids, finished = cluster.generate(prompt, NUM_TOKENS)
        assert ids == FakeRunner.expected(prompt, NUM_TOKENS)
        return finished

    first = answer()
    assert (first.path, first.usage.cached_tokens) == ("p2p", 0)
    wait_until(lambda: answer().path == "local", 10)
    for _ in range(4):
        again = answer()
        assert (again.path, again.prefill_worker) == ("local", "")
        assert again.usage.cached_tokens == full_blocks(len(prompt))
    count = partial(metric_value, f"{cluster.http}/metrics")
    assert count("pdserve_local_prefill_total", reason="cached_on_decode") >= 5
    assert count("pdserve_prefix_index_hits_total") >= 5 * full_blocks(len(prompt)) // BLOCK
