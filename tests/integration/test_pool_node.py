"""Pool nodes as real processes over NIXL: what is lost with one is cache, never a request, and never the text.

The fake model's tokens depend on every value it reads from the cache, so one wrong block gives another text.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.fake_model import write_fake_model
from cluster.grpc_pool import GrpcPoolNode
from engine.block_hash import HashContext, block_hashes
from engine.fake_runner import FakeModel, FakeRunner
from kv_transfer.messages import Compatibility, FailureReason, HandoffError, PeerInfo, Ticket
from rpc import inference_pb2, inference_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION
from tests import plain_http
from tests.hosts import HERE
from tests.integration.processes import Processes, WorkerProcess, wait_until

pytestmark = pytest.mark.integration

MODEL = FakeModel(seconds_per_step=0.001)
BLOCK = 16
NUM_TOKENS = 6
TRANSFER = {"pool_lookup_timeout_s": 2.0}  # a busy machine must not look like a node that stopped
LONGEST_S = 6.0  # of one request while a node fails, on a busy machine


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Two prefill workers, one decode worker, two pool nodes, and a proxy whose requests are pooled."""
    folder = write_fake_model(tmp_path_factory.mktemp("model"), MODEL)
    logs = tmp_path_factory.mktemp("logs")
    with Processes(folder, logs, engine={"num_blocks": 256}, kv_transfer=TRANSFER) as processes:
        processes.start_workers(prefill=2, decode=1)
        processes.start_pool_node()
        processes.start_pool_node()
        processes.start_proxy("--kv-mode=pooled")
        yield processes


def prompt(seed: int, num_blocks: int = 8) -> list[int]:
    """Whole blocks and a few tokens, which a pool cannot have."""
    return random.Random(seed).choices(range(97, 123), k=num_blocks * BLOCK + 5)


def ask(cluster: Processes, ids: list[int]) -> inference_pb2.Finished:
    text, finished = cluster.generate(ids, NUM_TOKENS)
    assert text == FakeRunner.expected(ids, NUM_TOKENS)
    return finished


def cancel(cluster: Processes, ids: list[int], after_s: float) -> None:
    """The client goes away so early, unless it has its answer by then."""
    sampling = inference_pb2.Sampling(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
    request = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=ids), sampling=sampling)
    with grpc.insecure_channel(cluster.grpc) as channel, contextlib.suppress(grpc.RpcError):
        list(inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=after_s))


def hits(cluster: Processes) -> float:
    return sum(node.metric("pdserve_pool_hits_total") for node in cluster.pool_nodes if node.process.poll() is None)


def objects(node: WorkerProcess) -> float:
    return node.metric("pdserve_pool_objects")


def check_nothing_is_held(cluster: Processes) -> None:
    cluster.wait_idle()
    names = ("pdserve_pool_leased_objects", "pdserve_pool_incomplete_objects")
    for node in cluster.pool_nodes:
        wait_until(lambda node=node: not any(node.metric(name) for name in names), 10)  # type: ignore[misc]


def restart(cluster: Processes, node: WorkerProcess, **pool: Any) -> WorkerProcess:
    """As another incarnation, empty."""
    cluster.end_pool_node(node)
    return cluster.start_pool_node(node.name, HERE, **pool)


def test_prompts_are_spread_over_the_nodes_and_read_from_them(cluster: Processes) -> None:
    for seed in range(4):
        ask(cluster, prompt(seed))
    assert all(objects(node) > 0 for node in cluster.pool_nodes)
    assert hits(cluster) >= 4 * 8
    check_nothing_is_held(cluster)
    targets = plain_http.get(f"{cluster.http}/prometheus/targets", timeout=5).json()
    scraped = {target["labels"]["worker"]: target["targets"] for target in targets}
    assert [scraped[node.name] for node in cluster.pool_nodes] == [[n.addresses["metrics"]] for n in cluster.pool_nodes]


def test_a_node_that_is_stopped_holds_up_no_request(cluster: Processes) -> None:
    stopped, living = cluster.pool_nodes
    ask(cluster, prompt(20))
    stopped.signal(signal.SIGSTOP)
    try:
        for seed in (20, 21, 22, 20):
            started_at = time.monotonic()
            ask(cluster, prompt(seed))
            assert time.monotonic() - started_at < LONGEST_S
        assert living.metric("pdserve_pool_failed_offers_total") == 0
    finally:
        stopped.signal(signal.SIGCONT)
    check_nothing_is_held(cluster)


def test_a_killed_node_costs_its_share_of_the_cache_and_comes_back_empty(cluster: Processes) -> None:
    """Field report D38."""
    lost, kept = cluster.pool_nodes
    ask(cluster, prompt(30))
    num_kept = objects(kept)
    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask, cluster, prompt(seed)) for seed in (31, 32, 33, 34)]
        lost.kill()
        for asked in asking:
            asked.result()
    ask(cluster, prompt(30))
    replaced = restart(cluster, lost)
    assert objects(replaced) == 0
    assert objects(kept) >= num_kept
    for seed in (35, 36):
        ask(cluster, prompt(seed))
    wait_until(lambda: objects(replaced) > 0, 10)
    check_nothing_is_held(cluster)


def test_requests_that_are_cancelled_while_they_load_from_the_pool_leave_nothing(cluster: Processes) -> None:
    rng = random.Random(60)
    for seed in range(60, 64):
        ask(cluster, prompt(seed))
    before = hits(cluster)
    with ThreadPoolExecutor(4) as threads:
        for longest_s in (0.06, 0.3, 1.5):  # until some are so patient that they load, on a busy machine too
            patience = [rng.uniform(0.0, longest_s) for _ in range(40)]
            prompts = [prompt(60 + n % 6) for n in range(40)]
            list(threads.map(partial(cancel, cluster), prompts, patience))
            if hits(cluster) > before:
                break
    assert hits(cluster) > before
    check_nothing_is_held(cluster)
    ask(cluster, prompt(60))


def test_full_nodes_that_evict_all_the_time_give_the_right_text(cluster: Processes, tmp_path: Path) -> None:
    """Field report D38: one of them evicts to its disk."""
    ram_bytes = 10 * MODEL.layout(BLOCK).block_bytes
    without, other = list(cluster.pool_nodes)
    restart(cluster, without, ram_bytes=ram_bytes)
    with_disk = restart(cluster, other, ram_bytes=ram_bytes, disk_bytes=1 << 20, disk_dir=str(tmp_path))
    with ThreadPoolExecutor(4) as threads:
        for asked in [threads.submit(ask, cluster, prompt(40 + n % 7)) for n in range(28)]:
            asked.result()
    assert all(node.metric("pdserve_pool_evictions_total") > 10 for node in cluster.pool_nodes)
    assert with_disk.metric("pdserve_pool_bytes", tier="disk") > ram_bytes
    check_nothing_is_held(cluster)


async def test_keys_of_another_model_block_size_or_salt_are_never_found(cluster: Processes) -> None:
    """Field report D37."""
    ids = prompt(50, num_blocks=2)
    await asyncio.to_thread(ask, cluster, ids)
    context = HashContext(MODEL.info().fingerprint, "float32", BLOCK)
    others = [
        replace(context, model_fingerprint="fake-other"),
        replace(context, kv_dtype="bfloat16"),
        replace(context, block_size=BLOCK // 2),
        context.with_salt("tenant"),
    ]
    nodes = [GrpcPoolNode(node.addresses["grpc"]) for node in cluster.pool_nodes]
    reader = Ticket(bytes(16), 1)
    assert await found(nodes, reader, block_hashes(context, ids))
    for other in others:
        assert not await found(nodes, reader, block_hashes(other, ids))
    layout = MODEL.layout(BLOCK)
    mine = Compatibility(
        PROTOCOL_VERSION, MODEL.info().fingerprint, "float32", BLOCK // 2, layout.num_layers, 1, layout.head_dim
    )
    for node, process in zip(nodes, cluster.pool_nodes, strict=True):
        with pytest.raises(HandoffError, match="block_size is 16 here and 8 on the peer") as refusal:
            await node.handshake(PeerInfo("D", mine), process.addresses["incarnation"])
        assert refusal.value.reason is FailureReason.INCOMPATIBLE
        await node.close(reader)
        await node.disconnect()


async def found(nodes: Sequence[GrpcPoolNode], reader: Ticket, keys: Sequence[bytes]) -> bool:
    """Whether any node has any of the keys."""
    refs = [ref for node in nodes for ref in await node.lookup(reader, keys)]
    return any(refs)
