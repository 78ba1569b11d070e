"""Prompts go where their beginning is cached, as workers say; and a decode worker computes what costs less there."""

from __future__ import annotations

import pytest

from proxy.request.kv_mode import KvMode
from proxy.workers.worker_link import WorkerLink
from tests.unit.proxy.conftest import Cluster, MakeCluster, collect

CONVERSATION = "The quick brown fox jumps over the lazy dog, again and again."  # 15 full blocks of 4


def link_to(cluster: Cluster, name: str) -> WorkerLink:
    links = [*cluster.proxy.pool.prefill_links(), *cluster.proxy.pool.decode_links()]
    return next(link for link in links if link.worker == name)


async def holds(cluster: Cluster, name: str, text: str, salt: str = "") -> None:
    """The worker says so, and the proxy has heard it."""
    num_before = cluster.metric("pdserve_prefix_index_blocks")
    cluster.worker(name).caches(text.encode(), salt=salt)
    await cluster.until(lambda: cluster.metric("pdserve_prefix_index_blocks") > num_before)


async def reports(cluster: Cluster, name: str, **load: int) -> None:
    """The worker says so, and the proxy has heard it."""
    cluster.worker(name).report(**load)
    await cluster.until(lambda: link_to(cluster, name).view().num_queued_tokens == load["num_queued_tokens"])


async def test_a_prompt_goes_where_its_beginning_is_cached(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=3)
    await holds(cluster, "prefill-2", CONVERSATION)
    for text in ("Yes?", "No?"):
        await cluster.submit(CONVERSATION + text)
        await cluster.worker("prefill-2").next_start()
    assert cluster.metric("pdserve_prefix_index_hits_total") == 2 * 15
    assert cluster.metric("pdserve_routing_decisions_total", policy="prefix_aware") == 2


async def test_what_is_cached_for_one_salt_is_not_for_another(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=2)
    await holds(cluster, "prefill-1", CONVERSATION, salt="theirs")
    await cluster.submit(CONVERSATION)
    await cluster.until(lambda: cluster.metric("pdserve_prefix_index_queries_total") == 15)
    assert cluster.metric("pdserve_prefix_index_hits_total") == 0


async def test_a_gap_in_the_updates_is_asked_for_again(cluster: Cluster) -> None:
    assert (await cluster.prefill.next_cache_watch()).after == 0
    cluster.prefill.caches(b"some", after=0, through=3)
    cluster.prefill.caches(b"more", after=4, through=5)  # the fourth is lost
    assert (await cluster.prefill.next_cache_watch()).after == 3
    assert cluster.metric("pdserve_prefix_index_blocks") == 1


async def test_after_a_break_only_what_was_missed_is_asked_for(cluster: Cluster) -> None:
    await cluster.prefill.next_cache_watch()
    cluster.prefill.caches(b"some", through=3)
    await cluster.until(lambda: cluster.metric("pdserve_prefix_index_blocks") == 1)
    cluster.prefill.end_stream()
    assert (await cluster.prefill.next_cache_watch()).after == 3
    assert cluster.metric("pdserve_prefix_index_blocks") == 1


async def test_a_new_incarnation_begins_with_an_empty_cache(cluster: Cluster) -> None:
    await cluster.decode.next_cache_watch()
    await holds(cluster, "decode-0", CONVERSATION)
    await cluster.decode.restart()
    cluster.publish()
    assert (await cluster.decode.next_cache_watch()).after == 0
    await cluster.until(lambda: cluster.metric("pdserve_prefix_index_blocks") == 0)


async def test_the_index_keeps_its_bound(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefix_index_blocks=5)
    await holds(cluster, "decode-0", CONVERSATION)
    assert cluster.metric("pdserve_prefix_index_blocks") == 5


@pytest.mark.parametrize(
    ("prompt", "cached_on_decode", "queued_on_prefill", "reason"),
    [
        ("hi", "", 0, "short_prompt"),
        (CONVERSATION + "Yes?", CONVERSATION, 0, "cached_on_decode"),
        (CONVERSATION, "", 1000, "prefill_overloaded"),
    ],
)
async def test_a_decode_worker_computes_a_prompt_itself_where_that_costs_less(
    make_cluster: MakeCluster, prompt: str, cached_on_decode: str, queued_on_prefill: int, reason: str
) -> None:
    cluster = await make_cluster(local_prefill="by_cost")
    if cached_on_decode:
        await holds(cluster, "decode-0", cached_on_decode)
    if queued_on_prefill:
        await reports(cluster, "prefill-0", num_queued_tokens=queued_on_prefill)
    request = await cluster.submit(prompt)
    start = await cluster.decode.next_start()
    assert not start.HasField("source")
    cluster.decode.say(start, b"a", finish="length")
    _, finished = await collect(request)
    assert (finished.route.path, finished.route.prefill_worker) == ("local", None)
    assert cluster.metric("pdserve_local_prefill_total", reason=reason) == 1
    assert cluster.prefill.starts.empty()


@pytest.mark.parametrize(
    ("prompt", "kv_mode"),
    [(CONVERSATION, None), ("hi", KvMode.P2P)],
    ids=["it is worth a hand-off", "the client asked for one"],
)
async def test_a_prefill_worker_computes_all_others(
    make_cluster: MakeCluster, prompt: str, kv_mode: KvMode | None
) -> None:
    cluster = await make_cluster(local_prefill="by_cost")
    await cluster.submit(prompt, kv_mode=kv_mode)
    _, decode = await cluster.starts()
    assert decode.HasField("source")
    assert cluster.metric("pdserve_local_prefill_total") == 0


async def test_a_full_prefill_worker_is_waited_for_unless_the_decode_worker_would_be_sooner_done(
    make_cluster: MakeCluster,
) -> None:
    cluster = await make_cluster(local_prefill="by_cost", dispatch_ahead=1)
    await cluster.submit(CONVERSATION)
    await cluster.starts()
    await cluster.submit(CONVERSATION)
    await cluster.until(lambda: cluster.metric("pdserve_requests_queued") == 1)
    await reports(cluster, "decode-0", num_running=1, num_queued_tokens=0)  # nothing to compute waits there
    await reports(cluster, "prefill-0", num_waiting=1, num_queued_tokens=70)
    assert cluster.metric("pdserve_requests_queued") == 1
    cluster.prefill.report(num_waiting=1, num_queued_tokens=1000)
    assert not (await cluster.decode.next_start()).HasField("source")


async def test_a_pair_is_chosen_where_less_must_move(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(decode=2)
    await holds(cluster, "decode-1", CONVERSATION)
    await cluster.submit(CONVERSATION)
    assert (await cluster.worker("decode-1").next_start()).HasField("source")
