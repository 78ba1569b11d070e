"""What the page at /dashboard is told, and who may see it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from rpc import control_pb2, worker_pb2
from tests.unit.proxy.access.conftest import Guarded, guarded, make_guarded
from tests.unit.proxy.conftest import Cluster, MakeCluster, http_client, strict_json
from tests.unit.proxy.fake_worker import FakeWorker

__all__ = ["guarded", "make_guarded"]
FILES = ("/dashboard", "/dashboard/page.css", "/dashboard/page.js")


@pytest.fixture
async def guarded_http(guarded: Guarded) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(f"http://{guarded.cluster.addresses.http}") as client:
        yield client


async def state(http: httpx.AsyncClient, after: int = -1) -> dict[str, Any]:
    answer = await http.get("/dashboard/state", params={"after": after})
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    told: dict[str, Any] = strict_json(answer.content)
    return told


async def state_of(http: httpx.AsyncClient, worker: str) -> str:
    return str(next(each["state"] for each in (await state(http))["workers"] if each["worker"] == worker))


async def test_the_page_may_load_its_own_files_and_nothing_else(http: httpx.AsyncClient) -> None:
    for path in FILES:
        answer = await http.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search("https?://(?!www.w3.org/2000/svg)", answer.text)


async def test_no_other_file_is_given_out(http: httpx.AsyncClient) -> None:
    for name in ("nothing.js", "..%2fstate.py", "../state.py", "page.html/x"):
        answer = await http.get(f"/dashboard/{name}")
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")


async def test_a_number_that_is_none_is_refused_by_name(http: httpx.AsyncClient) -> None:
    for after in ("x", "-2", "", "1.5", "9" * 40):
        answer = await http.get("/dashboard/state", params={"after": after})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")


async def test_whoever_has_some_points_gets_the_newer_ones_only(served: Cluster, http: httpx.AsyncClient) -> None:
    history = served.proxy.service.history
    for _ in range(3):
        history.take_sample([], {"interactive": 2, "batch": 1})
    told = await state(http)
    assert [point["number"] for point in told["points"]] == list(range(told["newest"] + 1))
    assert told["points"][-1]["queued"] == 3
    history.take_sample([], {"interactive": 0, "batch": 0})
    newer = await state(http, told["newest"])
    assert [point["number"] for point in newer["points"]] == list(range(told["newest"] + 1, newer["newest"] + 1))


async def test_it_tells_what_the_workers_report(served: Cluster, http: httpx.AsyncClient) -> None:
    served.decode.report(num_running=3, num_waiting=2, num_free_blocks=25, num_queued_tokens=70)
    link = served.proxy.pool.decode_links()[0]
    await served.until(lambda: link.tally.load is not None and link.tally.load.num_running == 3)
    told = await state(http)
    assert (told["model"], told["is_ready"], told["is_controller_away"]) == ("bytes", True, False)
    decode = next(each for each in told["workers"] if each["worker"] == "decode-0")
    assert (decode["role"], decode["state"], decode["kv_usage"]) == ("decode", "ready", 0.75)
    assert (decode["num_running"], decode["num_waiting"], decode["num_queued_tokens"]) == (3, 2, 70)


async def test_a_minute_of_requests_is_summed_up(served: Cluster, http: httpx.AsyncClient) -> None:
    served.decode.answer(b"abcd", size=1)
    asked = {"x-slo-ttft-ms": "60000"}
    for _ in range(3):
        await http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 4}, headers=asked)
    newest = served.proxy.service.history.newest
    await served.until(lambda: served.proxy.service.history.newest > newest)
    told = await state(http)
    minute = told["minute"]
    assert minute["counts"] == {"ok": 3, "slo_ttft_asked": 3, "slo_ttft_attained": 3}
    assert (minute["prompt_tokens"], minute["generated_tokens"], minute["retries"]) == (6, 12, 0)
    assert minute["quantiles"]["ttft"]["num"] == 3
    assert 0 < minute["quantiles"]["ttft"]["p50"] <= minute["quantiles"]["ttft"]["p99"]


async def test_a_worker_that_is_out_of_reach_stuck_or_leaving_is_seen_to_be(
    served: Cluster, http: httpx.AsyncClient
) -> None:
    served.decode.report(stuck=True, admitting=False)
    await served.until(lambda: not served.proxy.pool.decode_links())
    assert await state_of(http, "decode-0") == "stuck"
    starting = FakeWorker("decode-9", worker_pb2.ROLE_DECODE)
    starting.state = control_pb2.WORKER_STARTING
    served.workers.append(starting)
    served.prefill.state = control_pb2.WORKER_DRAINING
    served.publish()
    await served.until(lambda: len(served.proxy.pool.members) == 3)
    assert await state_of(http, "decode-9") == "starting"
    assert await state_of(http, "prefill-0") == "draining"
    await served.decode.stop()
    link = served.proxy.pool.link(served.decode.incarnation)
    assert link is not None
    await served.until(lambda: not link.is_up)
    assert await state_of(http, "decode-0") == "unreachable"


async def test_nodes_of_the_kv_pool_and_a_controller_that_is_away_are_told(
    served: Cluster, http: httpx.AsyncClient
) -> None:
    await served.start_pool("pool-0")
    assert [(node["worker"], node["state"]) for node in (await state(http))["pool_nodes"]] == [("pool-0", "ready")]
    await served.controller.stop()
    await served.until(lambda: served.proxy.watch.is_away)
    assert (await state(http))["is_controller_away"]


async def test_a_failed_request_is_told_as_it_is_whatever_it_is_called(
    served: Cluster, http: httpx.AsyncClient
) -> None:
    markup = "<script>alert(1)</script>"
    await http.post("/v1/completions", json={"model": markup, "prompt": "x"}, headers={"x-request-id": markup})
    (error,) = (await state(http))["errors"]
    assert (error["request_id"], error["http_status"], error["count"]) == (markup, 404, 1)
    assert markup in error["message"]


class TestWithKeys:
    async def test_nothing_is_given_out_without_one_and_a_browser_asks_for_it(
        self, guarded_http: httpx.AsyncClient
    ) -> None:
        for path in (*FILES, "/dashboard/state", "/dashboard/nothing"):
            refused = await guarded_http.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "missing_api_key")
            assert refused.headers["www-authenticate"].startswith('Basic realm="')

    async def test_a_key_that_may_observe_opens_it_as_a_bearers_or_as_a_password(
        self, guarded: Guarded, guarded_http: httpx.AsyncClient
    ) -> None:
        key = guarded.keys["monitor"]
        for path in (*FILES, "/dashboard/state"):
            assert (await guarded_http.get(path, headers={"authorization": f"Bearer {key}"})).status_code == 200
            assert (await guarded_http.get(path, auth=("anybody", key))).status_code == 200

    async def test_another_key_does_not(self, guarded: Guarded, guarded_http: httpx.AsyncClient) -> None:
        for name, status in (("alice", 403), ("revoked", 401), ("expired", 401)):
            refused = await guarded_http.get("/dashboard", auth=("", guarded.keys[name]))
            assert refused.status_code == status

    async def test_what_is_no_password_is_401(self, guarded_http: httpx.AsyncClient) -> None:
        for given in ("Basic", "Basic !", "Basic bm9jb2xvbg==", "Basic /zo="):
            refused = await guarded_http.get("/dashboard", headers={"authorization": given})
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")

    async def test_a_password_opens_nothing_else(self, guarded: Guarded, guarded_http: httpx.AsyncClient) -> None:
        auth = ("", guarded.keys["alice"])
        refused = await guarded_http.post("/v1/completions", json={"prompt": "x"}, auth=auth)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        monitor = ("", guarded.keys["monitor"])
        for path in ("/metrics", "/dashboards", "/v1/models"):
            assert (await guarded_http.get(path, auth=monitor)).status_code == 401

    async def test_open_metrics_do_not_open_it(self, make_guarded: Any) -> None:
        opened = await make_guarded(open_metrics=True)
        async with http_client(f"http://{opened.cluster.addresses.http}") as client:
            assert (await client.get("/dashboard/state")).status_code == 401


async def test_without_keys_everybody_sees_it(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True)
    async with http_client(f"http://{cluster.addresses.http}") as client:
        assert (await client.get("/dashboard")).status_code == 200
