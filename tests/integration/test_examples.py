"""The examples run as they are, against a live cluster."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console

from deploy.top.screen import screen
from deploy.top.state_source import StateSource
from tests.integration.processes import ROOT, Processes

pytestmark = pytest.mark.integration


def run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_openai_example_streams_a_chat(fake_cluster: Processes) -> None:
    out = run(sys.executable, "examples/openai_chat.py", "hi", "--url", f"{fake_cluster.http}/v1", "--max-tokens", "9")
    text, usage = out.splitlines()
    assert len(text) == 9
    assert usage.endswith("9 generated]")


def test_the_grpc_example_needs_no_generated_code(fake_cluster: Processes) -> None:
    out = run(sys.executable, "examples/grpc_generate.py", "hi", "--address", fake_cluster.grpc, "--max-tokens", "9")
    assert len(out.splitlines()[0]) == 9
    assert 'decode_worker: "decode-0"' in out


def test_the_triton_example_gets_the_same_text_whole_and_streamed(fake_cluster: Processes) -> None:
    out = run(
        sys.executable, "examples/triton_generate.py", "hi", "--address", fake_cluster.grpc, "--model", "test",
        "--max-tokens", "9",
    )  # fmt: skip
    whole, streamed, end = out.splitlines()
    assert whole == streamed
    assert end == "length, 9 tokens"


def test_the_curl_example_shows_answers_and_an_error(fake_cluster: Processes) -> None:
    out = run("examples/curl.sh", "--url", fake_cluster.http)
    assert "data: [DONE]" in out
    assert "x-decode-worker: decode-0" in out
    assert "temperature: must be from 0 to 2" in out


def test_top_shows_what_a_real_proxy_tells(fake_cluster: Processes) -> None:
    with StateSource(fake_cluster.http, {}, None) as source:
        before = source.read()
        console = Console(width=160, file=io.StringIO(), record=True)
        console.print(screen(source.read(), before, 160))
    text = console.export_text()
    assert text.startswith("test  ready")
    assert "decode-0" in text
