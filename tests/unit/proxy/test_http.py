"""The HTTP front over a real socket: the `openai` client, streams, errors, clients that go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from rpc import worker_pb2
from tests.unit.proxy.conftest import Cluster, MakeCluster, collect, events, strict_json
from tests.unit.proxy.fake_worker import PATIENCE_S, FakeWorker

HI: list[Any] = [{"role": "user", "content": "hi"}]


async def test_the_openai_client_gets_a_chat_answer(served: Cluster, client: openai.AsyncOpenAI) -> None:
    served.decode.answer(b"hello there")
    answer = await client.chat.completions.create(model="bytes", messages=HI, max_tokens=11)
    assert answer.choices[0].message.content == "hello there"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (20, 11, 31)


async def test_the_openai_client_gets_a_chat_stream(served: Cluster, client: openai.AsyncOpenAI) -> None:
    served.decode.answer("ahoj světe".encode())
    stream = await client.chat.completions.create(model="bytes", messages=HI, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "ahoj světe"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "length"]
    assert all(chunk.usage is None for chunk in chunks)


async def test_the_openai_client_gets_a_completion_streamed_and_whole(
    served: Cluster, client: openai.AsyncOpenAI
) -> None:
    served.decode.answer(b"a text")
    whole = await client.completions.create(model="bytes", prompt="hi", temperature=0)
    stream = await client.completions.create(model="bytes", prompt=[104, 105], stream=True)
    assert whole.choices[0].text == "".join([chunk.choices[0].text async for chunk in stream]) == "a text"


async def test_the_openai_client_lists_the_model(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["bytes"]
    assert (await client.models.retrieve("bytes")).owned_by == "pdserve"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other/model")


async def test_the_openai_client_understands_the_errors(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="gpt", messages=HI)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="bytes", messages=HI, temperature=3)
    assert bad.value.param == "temperature"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)],
)
async def test_usage_comes_in_a_stream_only_when_asked_for_once_and_last(
    served: Cluster, http: httpx.AsyncClient, options: dict[str, bool] | None, wanted: bool
) -> None:
    served.decode.answer(b"abcd")
    request = {"prompt": "hi", "stream": True, "stream_options": options}
    async with http.stream("POST", "/v1/completions", json=request) as response:
        chunks = await events(response)
    assert chunks[-1] == "[DONE]"
    with_usage = [chunk for chunk in chunks[:-1] if chunk.get("usage")]
    if not wanted:
        assert not with_usage
        return
    assert with_usage == [chunks[-2]]
    assert chunks[-2]["choices"] == []
    whole = (await http.post("/v1/completions", json={"prompt": "hi"})).json()
    assert chunks[-2]["usage"] == whole["usage"]


async def test_continuous_usage_is_refused_by_name(http: httpx.AsyncClient) -> None:
    request = {"prompt": "hi", "stream": True, "stream_options": {"continuous_usage_stats": True}}
    error = (await http.post("/v1/completions", json=request)).json()["error"]
    assert error["param"] == "stream_options.continuous_usage_stats"


async def test_each_token_leaves_when_it_arrives_and_no_one_may_buffer_it(
    served: Cluster, http: httpx.AsyncClient
) -> None:
    async def speak_first() -> worker_pb2.StartDecode:
        _, start = await served.starts()
        served.decode.say(start, b"a")
        return start

    speaking = asyncio.create_task(speak_first())
    async with http.stream("POST", "/v1/completions", json={"prompt": "hi", "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        chunks = (json.loads(line[6:]) async for line in response.aiter_lines() if line)
        assert (await anext(chunks))["choices"][0]["text"] == "a"
        for index, text in ((1, "b"), (2, "c")):  # each is said only after the one before was received
            served.decode.say(await speaking, text.encode(), index=index)
            assert (await anext(chunks))["choices"][0]["text"] == text


@pytest.mark.parametrize("stream", [False, True])
async def test_the_headers_say_who_served_it(served: Cluster, http: httpx.AsyncClient, stream: bool) -> None:
    def speak(start: Any) -> None:
        served.decode.say(start, b"x", finish="length", received_tokens=2, prefill_cached_tokens=1)

    served.decode.on_start = speak
    response = await http.post(
        "/v1/completions", json={"prompt": "hi", "stream": stream}, headers={"x-request-id": "mine"}
    )
    names = ("x-request-id", "x-prefill-worker", "x-decode-worker", "x-path", "x-cached-tokens")
    assert [response.headers[name] for name in names] == ["mine", "prefill-0", "decode-0", "p2p", "1"]


async def test_each_token_reaches_the_client_before_the_next_one_is_said(
    served: Cluster, http: httpx.AsyncClient
) -> None:
    """Field report D21: nothing on the way collects a stream."""
    body = {"prompt": "hi", "stream": True}
    texts = ""
    async with asyncio.TaskGroup() as group, asyncio.timeout(PATIENCE_S):
        starting = group.create_task(served.starts())
        sending = http.send(http.build_request("POST", "/v1/completions", json=body), stream=True)
        answering = group.create_task(sending)
        _, start = await starting
        served.decode.say(start, b"a")
        response = await answering
        lines = response.aiter_lines()
        for index in range(1, 4):
            while not (line := await anext(lines)):
                continue
            texts += strict_json(line[6:])["choices"][0]["text"]
            served.decode.say(start, b"a", index=index, finish="length" if index == 3 else "")
        await response.aclose()
    assert texts == "aaa"
    assert response.headers["content-type"].startswith("text/event-stream")
    assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-cache", "no")


async def test_a_second_client_with_the_same_id_and_body_reads_the_same_answer(
    served: Cluster, http: httpx.AsyncClient
) -> None:
    headers, body = {"x-request-id": "mine"}, {"prompt": "hi"}
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        asking = [group.create_task(http.post("/v1/completions", json=body, headers=headers)) for _ in range(2)]
        _, start = await served.starts()
        other = await http.post("/v1/completions", json={"prompt": "ho"}, headers=headers)
        served.decode.say(start, b"a", finish="length")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "duplicate_request")
    first, second = (task.result() for task in asking)
    assert first.json()["choices"] == second.json()["choices"]
    assert first.json()["usage"] == second.json()["usage"]
    assert served.prefill.starts.empty()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("has_spoken", [False, True])
async def test_a_client_that_goes_away_frees_both_workers(served: Cluster, stream: bool, has_spoken: bool) -> None:
    body = json.dumps({"prompt": "hi", "stream": stream}).encode()
    host, port = served.addresses.http.split(":")
    _reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    _, start = await served.starts()
    if has_spoken:
        served.decode.say(start, b"a")
        await served.until(lambda: served.metric("pdserve_generation_tokens_total") == 1)
    writer.close()
    assert (await served.decode.next_abort()).request_id == start.request.request_id
    if not has_spoken:
        await served.prefill.next_abort()
    await served.until(lambda: served.metric("pdserve_requests_in_flight") == 0)
    assert served.metric("pdserve_requests_total", code="cancelled") == 1


async def test_a_failure_before_the_first_token_is_a_status(http: httpx.AsyncClient, served: Cluster) -> None:
    async def fail() -> None:
        await served.starts()
        served.proxy.service.abort("mine")

    failing = asyncio.create_task(fail())
    response = await http.post(
        "/v1/completions", json={"prompt": "hi", "stream": True}, headers={"x-request-id": "mine"}
    )
    await failing
    assert response.status_code == 499
    assert response.json()["error"]["message"] == "the request was aborted"


async def test_a_failure_after_the_first_token_is_an_error_event_and_no_normal_end(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, recovery_timeout_s=0.05)
    url = f"http://{cluster.addresses.http}/v1/completions"

    async def die() -> None:
        _, start = await cluster.starts()
        cluster.decode.say(start, b"half")
        await cluster.until(lambda: cluster.metric("pdserve_generation_tokens_total") == 4)
        await cluster.decode.stop()

    dying = asyncio.create_task(die())
    async with (
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
        http.stream("POST", url, json={"prompt": "hi", "stream": True}) as response,
    ):
        chunks = await events(response)
    await dying
    assert [chunk["choices"][0]["text"] for chunk in chunks[:-1]] == ["half"]
    assert chunks[-1]["error"]["code"] == "worker_lost"
    assert all(choice["finish_reason"] is None for chunk in chunks[:-1] for choice in chunk["choices"])


async def test_a_full_queue_is_429_with_retry_after(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, max_queued_requests=1, dispatch_ahead=1)
    await cluster.submit()
    await cluster.starts()
    await cluster.submit()
    async with httpx.AsyncClient(base_url=f"http://{cluster.addresses.http}") as http:
        response = await http.post("/v1/completions", json={"prompt": "hi"})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "queue_full"


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b'{"prompt": "\\ud800"}', 400),
        ("POST", "/v1/completions", b"\xff", 400),
        ("POST", "/v1/completions", b'{"prompt": "x", "surprise": 1}', 400),
        ("POST", "/v1/chat/completions", b'{"messages": []}', 400),
        ("POST", "/v1/chat/completions", b'{"messages": [{"role": "user", "content": null}]}', 400),
        ("POST", "/v1/completions", b'{"prompt": "x", "model": "other"}', 404),
        ("GET", "/nowhere", b"", 404),
        ("GET", "/v1/completions", b"", 405),
    ],
)
async def test_every_error_has_the_same_form_and_the_next_request_works(
    served: Cluster, http: httpx.AsyncClient, method: str, path: str, content: bytes, status: int
) -> None:
    response = await http.request(method, path, content=content)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    served.decode.answer(b"ok")
    assert (await http.post("/v1/completions", json={"prompt": "x"})).json()["choices"][0]["text"] == "ok"


@pytest.mark.parametrize("header", ["x-kv-mode", "x-kv-write-back", "x-slo-ttft-ms"])
async def test_a_header_that_is_not_followed_is_refused(http: httpx.AsyncClient, header: str) -> None:
    response = await http.post("/v1/completions", json={"prompt": "x"}, headers={header: "something"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, header)


async def test_a_request_id_that_cannot_be_one_is_refused(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-id": "two words"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "request_id")


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit_is_refused(make_cluster: MakeCluster, declared: bool) -> None:
    cluster = await make_cluster(fronts=True, max_body_bytes=2000)
    content = json.dumps({"prompt": "x" * 3000}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        yield content

    async with httpx.AsyncClient(base_url=f"http://{cluster.addresses.http}") as http:
        response = await http.post("/v1/completions", content=content if declared else pieces())
    assert response.status_code == 413
    assert "2000 bytes" in response.json()["error"]["message"]


async def begin_body(cluster: Cluster) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that says it will send 100 bytes, and sends one."""
    host, port = cluster.addresses.http.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    return reader, writer


async def test_a_body_that_does_not_arrive_is_refused_and_its_connection_closed(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, body_timeout_s=0.05)
    reader, writer = await begin_body(cluster)
    async with asyncio.timeout(PATIENCE_S):
        answer = (await reader.read()).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 408")
    assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["code"] == "body_timeout"
    assert cluster.metric("pdserve_rejected_total", reason="body_timeout") == 1


async def test_a_client_that_goes_away_within_its_body_is_no_fault(
    served: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    _reader, writer = await begin_body(served)
    await writer.drain()
    writer.close()
    await served.until(lambda: served.metric("pdserve_requests_total", code="cancelled") == 1)
    assert "Traceback" not in caplog.text


async def test_a_prompt_that_cannot_fit_is_refused_and_holds_up_nobody(make_cluster: MakeCluster) -> None:
    """Field report D45."""
    cluster = await make_cluster(fronts=True)
    async with httpx.AsyncClient(base_url=f"http://{cluster.addresses.http}", timeout=30) as http:
        long = asyncio.create_task(http.post("/v1/completions", json={"prompt": "many words " * 200_000}))
        num_answers = 0
        while not long.done():
            assert (await http.get("/health")).status_code == 200
            num_answers += 1
    response = await long
    assert response.status_code == 400
    assert "at least 314285 tokens" in response.json()["error"]["message"]
    assert "512" in response.json()["error"]["message"]


async def test_health_and_readiness(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(decode=0, fronts=True)
    async with httpx.AsyncClient(base_url=f"http://{cluster.addresses.http}") as http:
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/ready")).status_code == 503
        cluster.workers.append(FakeWorker("decode-0", worker_pb2.ROLE_DECODE))
        await cluster.decode.start()
        cluster.publish()
        await cluster.until(lambda: cluster.proxy.service.is_ready)
        assert (await http.get("/ready")).status_code == 200


async def test_prometheus_finds_the_proxy_and_the_workers(served: Cluster, http: httpx.AsyncClient) -> None:
    targets = (await http.get("/prometheus/targets")).json()
    assert targets[0]["targets"] == [served.addresses.http]
    labels = [target["labels"] for target in targets]
    assert labels == [
        {"role": "proxy", "worker": "proxy", "model_name": "bytes"},
        {"role": "prefill", "worker": "prefill-0", "model_name": "bytes"},
        {"role": "decode", "worker": "decode-0", "model_name": "bytes"},
    ]


async def test_prometheus_is_told_the_group_of_a_worker_that_is_in_one(
    served: Cluster, http: httpx.AsyncClient
) -> None:
    served.decode.group = "big"
    served.publish()
    await served.until(lambda: any(member.group for member in served.proxy.pool.members))
    labels = [target["labels"] for target in (await http.get("/prometheus/targets")).json()]
    assert [each.get("group") for each in labels] == [None, None, "big"]


async def test_prometheus_finds_the_controller_once_it_has_said_where(served: Cluster, http: httpx.AsyncClient) -> None:
    served.controller.metrics_address = "127.0.0.1:9"
    served.publish()
    await served.until(lambda: bool(served.proxy.watch.metrics_address))
    targets = (await http.get("/prometheus/targets")).json()
    assert targets[1] == {
        "targets": ["127.0.0.1:9"],
        "labels": {"role": "controller", "worker": "controller", "model_name": "bytes"},
    }


async def test_the_metrics_are_in_prometheus_form(http: httpx.AsyncClient) -> None:
    response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert 'pdserve_requests_in_flight{model_name="bytes",role="proxy"} 0.0' in response.text


async def test_a_request_over_http_and_one_inside_are_the_same(served: Cluster, http: httpx.AsyncClient) -> None:
    served.decode.answer("čaj".encode(), size=1)
    over_http = (await http.post("/v1/completions", json={"prompt": "hi"})).json()["choices"][0]["text"]
    assert (await collect(await served.submit("hi")))[0] == over_http == "čaj"
