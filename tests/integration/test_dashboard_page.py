"""The live page in a real browser: that it shows what happens, each second, wide and narrow, light and dark."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import httpx
import pytest
import pytest_asyncio

from proxy.config import ProxyConfig
from proxy.model import ServedModel
from proxy.workers.worker_link import LinkTimes
from rpc import worker_pb2
from tests.browser import CHROMIUM, Browser, Page, open_browser
from tests.unit.proxy.conftest import Cluster, write_byte_model
from tests.unit.proxy.fake_worker import FakeWorker

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on PATH: apt-get install chromium"),
]
MARKUP = "<img src=x onerror=alert(1)>"
SIDES = ("prefill", "decode")


def answer(decode: FakeWorker, start: worker_pb2.StartDecode) -> None:
    """Four tokens, of a prompt whose KV came from its prefill worker."""
    num_tokens = len(start.request.prompt_ids)
    for index in range(4):
        decode.say(start, b"a", index=index, finish="length" if index == 3 else "", received_tokens=num_tokens)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """One prefill worker, and two decode workers that answer all they are asked."""
    model = ServedModel.load(write_byte_model(tmp_path_factory.mktemp("model")), MARKUP)
    config = ProxyConfig(grpc_port=0, http_port=0, drain_timeout_s=0.0, local_prefill="if_needed", slo_ttft_s=60.0)
    cluster = Cluster(model, config, LinkTimes(first_backoff_s=0.01))
    await cluster.start(1, 2, 0, fronts=True, max_model_len={})
    for decode in cluster.workers[1:]:
        decode.on_start = partial(answer, decode)
    yield cluster
    await cluster.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def page(cluster: Cluster, browser: Browser) -> AsyncIterator[Page]:
    page = await browser.open(f"http://{cluster.addresses.http}/dashboard")
    await page.until("document.querySelector('#status').textContent === 'serving'")
    yield page
    await page.close()


async def ask(cluster: Cluster, **body: object) -> int:
    async with httpx.AsyncClient(base_url=f"http://{cluster.addresses.http}", timeout=20.0) as client:
        answer = await client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 4, **body})
        return answer.status_code


async def test_requests_show_within_seconds_in_figures_lines_map_and_table(
    cluster: Cluster, page: Page, browser: Browser
) -> None:
    assert {await ask(cluster) for _ in range(3)} == {200}
    await page.until("document.querySelector('.card .notes').innerText.includes('within')")
    assert (await page.text("#handoffs tr")).split()[:3:2] == ["prefill-0", "nixl"]
    assert "100 % within 1 min" in (await page.text(".card")).replace("\u202f", " ")
    assert "M" in str(await page.evaluate("document.querySelector('.card .line.strong').getAttribute('d')"))
    assert int(str(await page.evaluate("document.querySelectorAll('#wires path').length"))) >= 1
    assert browser.complaints == []


async def test_workers_show_their_load_and_what_is_wrong_with_them(cluster: Cluster, page: Page) -> None:
    cluster.decode.report(num_running=7, num_waiting=2, num_free_blocks=25)
    await page.until("document.querySelector('[data-worker=decode-0]').innerText.includes('7 running · 2 waiting')")
    assert "KV 75" in await page.text("[data-worker=decode-0]")
    cluster.decode.report(stuck=True, admitting=False)
    await page.until("document.querySelector('[data-worker=decode-0].bad .state')?.textContent === 'stuck'")
    assert "2 of 3 workers ready" in await page.text("#cluster-summary")
    cluster.decode.report(stuck=False, admitting=True)
    await page.until("document.querySelector('[data-worker=decode-0].ok')")


async def test_what_clients_wrote_is_text_and_no_markup(cluster: Cluster, page: Page, browser: Browser) -> None:
    assert await ask(cluster, model=f"{MARKUP}2") == 404
    await page.until("document.querySelectorAll('#errors li').length > 0")
    assert f"{MARKUP}2" in await page.text("#errors li")
    assert (await page.text("#model"), await page.evaluate("document.images.length")) == (MARKUP, 0)
    assert browser.complaints == []


async def test_a_proxy_that_is_gone_is_said_to_be_and_what_was_seen_stays(cluster: Cluster, page: Page) -> None:
    await page.call("Network.enable")
    await page.call(
        "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
    )
    await page.until("document.querySelector('#status').textContent === 'no connection'")
    assert "cannot be asked" in await page.text("#banner")
    assert "decode-0" in await page.text("#decode")
    await page.call(
        "Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1
    )
    await page.until("document.querySelector('#banner').hidden && !document.body.classList.contains('stale')")


async def test_a_phone_sees_all_of_it_without_scrolling_sideways_also_at_night(
    cluster: Cluster, page: Page, browser: Browser
) -> None:
    phone = await browser.open(f"http://{cluster.addresses.http}/dashboard", width=390, height=844, dark=True)
    await phone.until("document.querySelector('#status').textContent === 'serving'")
    assert await phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for side in SIDES:
        box = await phone.evaluate(f"document.querySelector('#{side} .worker').getBoundingClientRect().toJSON()")
        assert box["width"] > 100
        assert box["right"] <= 390
    ground = "getComputedStyle(document.body).backgroundColor"
    assert await phone.evaluate(ground) != await page.evaluate(ground)
