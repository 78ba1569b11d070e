"""Who is refused at the door of a running proxy, with which word, and when it should come again."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from proxy.access.caller import Caller, Scope, TenantLimits
from proxy.admission.entrance import Entrance
from proxy.admission.slo import NO_SLO, Slo
from proxy.admission.waiting_room import WaitingRoom
from proxy.errors import ApiError, ErrorCode
from proxy.request.priority import NORMAL
from proxy.request.reading import Reading
from proxy.routing.queue import Asked, RequestQueue
from proxy.text.prompt import TokenPrompt
from tests.unit.proxy.conftest import Cluster, MakeCluster
from tests.unit.proxy.fake_worker import PATIENCE_S


def caller(tenant: str, **limits: int) -> Caller:
    return Caller(tenant, frozenset(Scope), TenantLimits(**limits))


async def submit(cluster: Cluster, by: Caller, prompt: str = "hi", slo: Slo = NO_SLO, **sampling: object) -> Reading:
    return await cluster.proxy.service.submit(cluster.request(prompt, caller=by, slo=slo, **sampling))  # type: ignore[arg-type]


async def refusal(cluster: Cluster, by: Caller, prompt: str = "hi", slo: Slo = NO_SLO) -> ApiError:
    with pytest.raises(ApiError) as refused:
        await submit(cluster, by, prompt, slo)
    assert refused.value.code is ErrorCode.RESOURCE_EXHAUSTED
    assert cluster.metric("pdserve_rejected_total", reason=refused.value.reason or "") == 1
    return refused.value


async def one_running(make_cluster: MakeCluster, **settings: object) -> Cluster:
    """A cluster that is full: all others wait."""
    cluster = await make_cluster(prefill=0, dispatch_ahead=1, **settings)
    await submit(cluster, caller("first"))
    await cluster.decode.next_start()
    return cluster


async def test_a_tenants_flood_refuses_no_request_of_another(make_cluster: MakeCluster) -> None:
    cluster = await one_running(make_cluster, max_queued_requests=8)
    for _ in range(8):
        await submit(cluster, caller("flood"))
    assert (await refusal(cluster, caller("flood"))).reason == "queue_full"
    for _ in range(4):
        await submit(cluster, caller("other"))


async def test_nor_delays_it(make_cluster: MakeCluster) -> None:
    cluster = await one_running(make_cluster)
    for i in range(20):
        await submit(cluster, caller("flood"), f"flood {i}")
    await submit(cluster, caller("other"), "other")
    cluster.decode.report(num_running=1)
    sent = [bytes((await cluster.decode.next_start()).request.prompt_ids)]
    cluster.decode.report(num_running=2)
    sent.append(bytes((await cluster.decode.next_start()).request.prompt_ids))
    assert sent == [b"flood 0", b"other"]


async def test_prompt_tokens_that_wait_are_bounded(make_cluster: MakeCluster) -> None:
    cluster = await one_running(make_cluster, max_queued_tokens=100)
    await submit(cluster, caller("a"), "x" * 90)
    refused = await refusal(cluster, caller("a"), "x" * 11)
    assert "90 prompt tokens" in refused.message
    await submit(cluster, caller("a"), "x" * 10)


async def test_a_prompt_that_could_never_wait_is_a_bad_request(make_cluster: MakeCluster) -> None:
    cluster = await one_running(make_cluster, max_queued_tokens=100)
    with pytest.raises(ApiError, match="101 tokens are more than the 100 that may wait") as refused:
        await submit(cluster, caller("a"), "x" * 101)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


async def test_what_a_request_took_is_given_back_when_it_leaves(make_cluster: MakeCluster) -> None:
    cluster = await one_running(make_cluster, max_queued_requests=2, max_queued_tokens=100)
    for _ in range(3):
        waiting = [await submit(cluster, caller("a"), "x" * 50) for _ in range(2)]
        for generation in waiting:
            generation.cancel()


async def test_a_tenants_own_limit_of_waiting_requests(make_cluster: MakeCluster) -> None:
    cluster = await one_running(make_cluster)
    for _ in range(2):
        await submit(cluster, caller("a", max_queued=2))
    refused = await refusal(cluster, caller("a", max_queued=2))
    assert (refused.reason, "max_queued" in refused.message) == ("tenant_queue_full", True)
    await submit(cluster, caller("b", max_queued=2))


async def test_a_tenants_requests_over_its_limit_wait_until_one_ends(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, dispatch_ahead=4)
    for i in range(2):
        await submit(cluster, caller("a", max_running=1), f"a{i}")
    await submit(cluster, caller("b"), "b")
    starts = [await cluster.decode.next_start() for _ in range(2)]
    assert [bytes(start.request.prompt_ids) for start in starts] == [b"a0", b"b"]
    cluster.decode.say(starts[0], b"x", finish="length")
    assert bytes((await cluster.decode.next_start()).request.prompt_ids) == b"a1"


async def test_a_cancelled_request_makes_room_for_the_tenants_next(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, dispatch_ahead=4)
    first = await submit(cluster, caller("a", max_running=1))
    await submit(cluster, caller("a", max_running=1), "next")
    await cluster.decode.next_start()
    first.cancel()
    assert bytes((await cluster.decode.next_start()).request.prompt_ids) == b"next"


async def test_requests_per_minute(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster()
    for _ in range(3):
        await submit(cluster, caller("a", requests_per_minute=3))
    refused = await refusal(cluster, caller("a", requests_per_minute=3))
    assert refused.reason == "rate_limited"
    assert refused.retry_after_s is not None
    assert 18 <= refused.retry_after_s <= 21
    await submit(cluster, caller("b", requests_per_minute=3))


async def test_tokens_per_minute_count_prompts_and_completions(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0)
    by = caller("a", tokens_per_minute=10)
    await submit(cluster, by, "12345")
    start = await cluster.decode.next_start()
    await submit(cluster, by, "1")
    cluster.decode.say(start, b"x" * 20, finish="length")
    await cluster.until(lambda: cluster.metric("pdserve_generation_tokens_total") == 20)
    refused = await refusal(cluster, by)
    assert refused.reason == "rate_limited"
    assert refused.retry_after_s == 60  # 102 s, but nobody is told to wait longer


class TestSlo:
    def busy(self) -> Entrance[str]:
        """1,000 tokens of one tenant wait, 100 go in a second, and a worker then takes half a second."""
        now = 100.0
        queue: RequestQueue[str] = RequestQueue(WaitingRoom(100, 10_000), 2.0)
        entrance = Entrance(queue, lambda: now)
        entrance.estimate.saw(0.5)
        for n in range(10):
            entrance.enter(caller("waiting"), NORMAL, 1, Slo())
            queue.push(str(n), Asked("waiting", num_tokens=68))
        for n in range(11):
            queue.drain.looked(100, now - 10 + n, is_waiting=True)
        return entrance

    def test_a_request_that_cannot_have_its_first_token_in_time_is_refused_at_once(self) -> None:
        with pytest.raises(ApiError, match=r"expected after 10[0-9]{3} ms") as refused:
            self.busy().enter(caller("waiting"), NORMAL, 1, Slo(ttft_s=4.0))
        assert (refused.value.code, refused.value.reason) == (ErrorCode.RESOURCE_EXHAUSTED, "slo_unattainable")
        assert refused.value.retry_after_s == 7

    def test_one_that_can_is_not(self) -> None:
        self.busy().enter(caller("waiting"), NORMAL, 1, Slo(ttft_s=11.0))

    def test_nor_is_one_of_a_tenant_that_waits_for_little(self) -> None:
        self.busy().enter(caller("another"), NORMAL, 1, Slo(ttft_s=4.0))

    def test_a_full_queue_says_when_it_will_be_worked_off(self) -> None:
        entrance = self.busy()
        with pytest.raises(ApiError, match="the server is busy") as refused:
            entrance.enter(caller("waiting"), NORMAL, 95, Slo())
        assert refused.value.retry_after_s == 10

    async def test_nobody_is_refused_while_the_cluster_is_idle_or_unknown(self, make_cluster: MakeCluster) -> None:
        cluster = await make_cluster()
        await submit(cluster, caller("a"), slo=Slo(ttft_s=0.001))
        cluster = await one_running(make_cluster)
        await submit(cluster, caller("a"))
        await submit(cluster, caller("a"), slo=Slo(ttft_s=0.001))

    async def test_the_goal_comes_from_headers_and_what_was_met_is_counted(self, served: Cluster) -> None:
        headers = {"x-slo-ttft-ms": "60000", "x-slo-tpot-ms": "0.000001"}
        async with httpx.AsyncClient(base_url=f"http://{served.addresses.http}", verify=False) as http:
            asking = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x"}, headers=headers))
            _, decode = await served.starts()
            served.decode.say(decode, b"a")
            await served.until(lambda: served.metric("pdserve_generation_tokens_total") == 1)
            served.decode.say(decode, b"b", index=1, finish="length")
            assert (await asking).status_code == 200
        asked = {slo: served.metric("pdserve_slo_requests_total", slo=slo) for slo in ("ttft", "tpot", "both")}
        met = {slo: served.metric("pdserve_slo_attained_total", slo=slo) for slo in ("ttft", "tpot", "both")}
        assert asked == {"ttft": 1, "tpot": 1, "both": 1}
        assert met == {"ttft": 1, "tpot": 0, "both": 0}

    @pytest.mark.parametrize("value", ["", "0", "-1", "1e3", "nan", "soon", "9" * 20])
    async def test_a_goal_that_is_no_number_is_refused_by_name(self, served: Cluster, value: str) -> None:
        async with httpx.AsyncClient(base_url=f"http://{served.addresses.http}", verify=False) as http:
            response = await http.post("/v1/completions", json={"prompt": "x"}, headers={"x-slo-ttft-ms": value})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "x-slo-ttft-ms")


async def test_token_ids_that_are_too_many_are_refused_before_they_wait(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match="100000 tokens are too many"):
        await cluster.submit(TokenPrompt((1,) * 100_000))


async def test_a_full_queue_refuses_before_the_body_is_there(make_cluster: MakeCluster) -> None:
    """Field report D46."""
    cluster = await make_cluster(prefill=0, dispatch_ahead=1, max_queued_requests=1, fronts=True)
    await submit(cluster, caller(""))
    await cluster.decode.next_start()
    await submit(cluster, caller(""))
    host, port = cluster.addresses.http.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 1\r\n" in head
    assert cluster.metric("pdserve_rejected_total", reason="queue_full") == 1
