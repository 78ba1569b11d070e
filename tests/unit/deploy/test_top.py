"""`pdserve top`: the proxy's state as a terminal shows it, and what is told when there is none."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from rich.console import Console

from deploy.ports import free_ports
from deploy.top.screen import BARS, screen, sparkline
from deploy.top.state_source import NoStateError, StateSource


def state(**changes: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {
        "at": 100.0, "newest": 1, "model": "test", "started_at": 1.0, "is_ready": True, "is_controller_away": False,
        "goals": {"ttft_s": 0.5, "tpot_s": 0.05}, "queued": 0,
        "minute": {"quantiles": {}},
        "workers": [worker("decode-0")], "handoffs": [], "errors": [],
        "points": [point(0), point(1)],
    }  # fmt: skip
    return {**seen, **changes}


def worker(name: str, **changes: Any) -> dict[str, Any]:
    seen = {
        "worker": name, "incarnation": f"{name}-a", "role": "decode", "state": "ready", "node": "vm",
        "num_running": 3, "num_waiting": 1, "kv_usage": 0.25, "num_prefill_tokens": 0, "num_decode_tokens": 1000,
    }  # fmt: skip
    return {**seen, **changes}


def point(number: int) -> dict[str, Any]:
    return {"number": number, "prompt_tokens": 10.0 * number, "generated_tokens": 5.0, "running": 2, "queued": 0}


def shown(now: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(screen(now, before, 160))
    return console.export_text()


@contextmanager
def proxy(answers: Sequence[dict[str, Any]], status: int = 200) -> Iterator[tuple[str, list[int]]]:
    """Its URL, and after which point it was asked; it gives the answers one after the other."""
    asked: list[int] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(int(parse_qs(urlsplit(self.path).query)["after"][0]))
            body = json.dumps(answers[len(asked) - 1]).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_a_worker_s_rate_is_what_it_computed_between_two_looks() -> None:
    later = state(at=102.0, workers=[worker("decode-0", num_decode_tokens=1500)])
    assert "250" in shown(later, state()).split("NODE")[1]


def test_a_worker_that_was_replaced_has_no_rate_yet() -> None:
    later = state(at=102.0, workers=[worker("decode-0", incarnation="decode-0-b", num_decode_tokens=77)])
    (line,) = [line for line in shown(later, state()).splitlines() if line.startswith("decode-0")]
    assert line.split() == ["decode-0", "decode", "ready", "3", "1", "25%", "vm"]


def test_latencies_stand_beside_their_goals() -> None:
    quantiles = {"ttft": {"p50": 0.2, "p95": 1.5, "p99": 2.0, "num": 40}}
    text = shown(state(minute={"quantiles": quantiles}))
    assert "TTFT         200.0 ms  1.50 s  2.00 s  500.0 ms  40" in text


def test_a_proxy_that_cannot_serve_says_so_first() -> None:
    first = shown(state(is_ready=False, is_controller_away=True)).splitlines()[0]
    assert "no worker takes requests" in first
    assert "the controller is away" in first


def test_errors_and_handoffs_are_shown_as_they_are_written() -> None:
    error = {"at": 90.0, "http_status": 503, "code": "UNAVAILABLE", "count": 4, "message": "[red]no worker"}
    pair = {"prefill": "prefill-0", "decode": "decode-0", "transport": "nixl", "num_now": 2, "num_minute": 31}
    text = shown(state(errors=[error], handoffs=[pair]))
    assert "503 UNAVAILABLE  4      10 s  [red]no worker" in text
    assert "prefill-0  decode-0  nixl     2    31" in text


def test_a_sparkline_is_of_the_newest_values() -> None:
    assert sparkline([9, 0, 1, 2], 3) == f"{BARS[0]}{BARS[4]}{BARS[7]}"
    assert sparkline([0, 0], 10) == BARS[0] * 2
    assert sparkline([], 10) == ""


def test_points_come_once_and_are_kept() -> None:
    with proxy([state(), state(points=[point(2)])]) as (url, asked), StateSource(url, {}, None) as source:
        source.read()
        assert [each["number"] for each in source.read()["points"]] == [0, 1, 2]
        assert asked == [-1, 1]


def test_a_proxy_that_started_again_is_asked_for_all_its_points() -> None:
    again = {"started_at": 2.0, "points": [point(0)]}
    answers = [state(), state(points=[], started_at=2.0), state(**again)]
    with proxy(answers) as (url, asked), StateSource(url, {}, None) as source:
        source.read()
        assert [each["number"] for each in source.read()["points"]] == [0]
        assert asked == [-1, 1, -1]


def test_a_refusal_is_told_with_its_reason() -> None:
    refusal = {"error": {"message": "no key was given"}}
    with (
        proxy([refusal], status=401) as (url, _),
        StateSource(url, {}, None) as source,
        pytest.raises(NoStateError, match=r"answered 401: .*no key was given"),
    ):
        source.read()


def test_a_proxy_that_is_away_is_told_with_what_to_ask_next() -> None:
    (port,) = free_ports(["127.0.0.1"])
    with StateSource(f"http://127.0.0.1:{port}", {}, None) as source, pytest.raises(NoStateError, match="pdserve logs"):
        source.read()
