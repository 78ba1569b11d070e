"""What clients do wrong or too large costs the clients beside them nothing, and no worker its good name."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.integration.processes import Processes, wait_until
from tests.integration.test_api import expected_text

pytestmark = pytest.mark.integration

LARGE: dict[str, tuple[str, Any, int]] = {
    "5 MB": ("/v1/completions", {"prompt": "many words " * 480_000}, 400),
    "27 MB": ("/v1/completions", {"prompt": "x" * 27_000_000}, 413),
    "10,000 messages": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi " * 20}] * 10_000}, 400),
}


def test_what_clients_do_wrong_is_no_fault_of_a_worker(fake_cluster: Processes) -> None:
    """Field report D19: prompts too long and bodies that are none, and then all good requests are answered."""
    good = [f"good request {number}" for number in range(50)]

    def texts(client: httpx.Client) -> Iterator[str]:
        for prompt in good:
            body = {"model": "test", "prompt": prompt, "max_tokens": 4, "temperature": 0}
            yield client.post("/v1/completions", json=body).json()["choices"][0]["text"]

    with httpx.Client(base_url=fake_cluster.http, timeout=60) as client:
        ready = client.get("/ready").text
        for number in range(50):
            assert client.post("/v1/completions", json={"prompt": "x" * (5000 + number)}).status_code == 400
            assert client.post("/v1/completions", content=b'{"prompt": ' * number).status_code == 400
        assert client.get("/ready").text == ready
        assert list(texts(client)) == [expected_text(prompt, 4) for prompt in good]


@pytest.mark.parametrize("size", LARGE)
def test_what_is_too_large_is_refused_while_streams_and_health_go_on(fake_cluster: Processes, size: str) -> None:
    """Field report D45: nobody waits until it is read, counted or tokenised."""
    path, fields, status = LARGE[size]
    body = json.dumps({"model": "test", **fields}).encode()
    running = {"model": "test", "prompt": "go on", "max_tokens": 3000, "temperature": 0, "stream": True}
    events: list[str] = []
    refused = threading.Event()

    def read(response: httpx.Response) -> None:
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(line)
            if refused.is_set():
                return

    with (
        ThreadPoolExecutor(2) as threads,
        httpx.Client(base_url=fake_cluster.http, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=running) as response,
    ):
        reading = threads.submit(read, response)
        wait_until(lambda: bool(events), 60)
        before = len(events)
        asking = threads.submit(client.post, path, content=body)
        while not asking.done() or len(events) == before:
            assert client.get("/health", timeout=10).status_code == 200
            assert not reading.done(), "it ended before anything came while a large body was read"
        refused.set()
        assert asking.result().status_code == status, asking.result().text
        reading.result(60)
    text = "".join(json.loads(event[6:])["choices"][0]["text"] for event in events)
    assert text == expected_text("go on", len(text))
    fake_cluster.wait_idle()
