"""Structured output and calls of functions by the real model, apart on P and D: what comes is always valid.

P samples the first token under the grammar and D goes on in it. A model of 135M parameters knows little of JSON, so
that whatever is right here is the grammar's doing.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import openai
import psutil
import pytest

from tests import plain_http
from tests.integration.processes import ROOT, Processes

pytestmark = pytest.mark.integration

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "inhabitants": {"type": "integer", "minimum": 1, "maximum": 99999999},
        "rivers": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 2},
        "climate": {"enum": ["mild", "hot", "cold"]},
    },
    "required": ["name", "inhabitants", "rivers", "climate"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
HANGS = {"type": "integer", "multipleOf": 9999991}  # llguidance would compute for minutes
PARIS: list[Any] = [{"role": "user", "content": "What is the weather in Paris? Describe the city."}]


@pytest.fixture(scope="module")
def cluster(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(real_model, tmp_path_factory.mktemp("logs"), engine={"num_blocks": 128}) as processes:
        processes.start_workers()
        processes.start_proxy()
        yield processes


@pytest.fixture(scope="module")
def client(cluster: Processes) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{cluster.http}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def chat(client: Any, **fields: Any) -> Any:
    return client.chat.completions.create(model="test", messages=PARIS, **{"max_tokens": 120, "seed": 1, **fields})


def spoken(stream: Any) -> tuple[str, list[dict[str, str]], str]:
    """The content, the calls and the reason of a whole stream."""
    content, reason = "", ""
    calls: list[dict[str, str]] = []
    for chunk in stream:
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or ():
            if call.id is not None:
                calls.append({"name": call.function.name, "arguments": ""})
            calls[call.index]["arguments"] += call.function.arguments
    return content, calls, reason


@pytest.mark.parametrize("temperature", [1.3, pytest.param(0, marks=pytest.mark.long)])
def test_an_answer_has_the_schema_whole_and_streamed(client: Any, temperature: float) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    whole = chat(client, response_format=asked, temperature=temperature).choices[0]
    assert whole.finish_reason == "stop"
    jsonschema.validate(json.loads(whole.message.content), CITY)
    text, _, reason = spoken(chat(client, response_format=asked, temperature=temperature, stream=True))
    assert (text, reason) == (whole.message.content, "stop")


def test_any_object_a_regex_and_a_grammar(client: Any) -> None:
    text = chat(client, response_format={"type": "json_object"}, temperature=0).choices[0].message.content
    assert text.startswith("{")
    number = chat(client, extra_body={"regex": r"[0-9]{2,4} inhabitants\."}).choices[0].message.content
    assert re.fullmatch(r"[0-9]{2,4} inhabitants\.", number)
    rule = 'root ::= ("yes" | "no") ", " [a-z]{3,8} "!"'
    answer = chat(client, extra_body={"structured_outputs": {"grammar": rule}}).choices[0].message.content
    assert re.fullmatch(r"(yes|no), [a-z]{3,8}!", answer)


@pytest.mark.parametrize(
    "choice",
    ["required", pytest.param({"type": "function", "function": {"name": "get_weather"}}, marks=pytest.mark.long)],
)
def test_a_function_that_must_be_called_is_called_whole_and_streamed(client: Any, choice: Any) -> None:
    fields = {"tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False, "temperature": 0}
    whole = chat(client, **fields).choices[0]
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    (call,) = whole.message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])
    content, calls, reason = spoken(chat(client, **fields, stream=True))
    assert (content, reason) == ("", "tool_calls")
    assert calls == [{"name": "get_weather", "arguments": call.function.arguments}]


def test_a_call_that_is_cut_says_so(client: Any) -> None:
    fields = {"tools": [WEATHER], "tool_choice": "required", "temperature": 0}
    content, calls, reason = spoken(chat(client, **fields, max_tokens=24, stream=True))
    assert (content, len(calls), reason) == ("", 1, "length")


def test_a_strict_function_and_free_text_go_together(client: Any) -> None:
    tool = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    answer = chat(client, tools=[tool], max_tokens=24).choices[0]
    assert answer.message.content or answer.message.tool_calls


def test_the_example_runs(cluster: Processes) -> None:
    command = [sys.executable, "examples/openai_tools.py", "Paris", "--url", f"{cluster.http}/v1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    city, call = done.stdout.splitlines()
    jsonschema.validate(ast.literal_eval(city), {"type": "object", "required": ["name", "country"]})
    assert call.startswith("get_weather {'city': 'Paris'")


def test_a_grammar_that_hangs_its_compiler_hangs_nobody_else(cluster: Processes, client: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        body = {"messages": PARIS, "response_format": {"type": "json_schema", "json_schema": {"schema": HANGS}}}
        refused = pool.submit(plain_http.post, f"{cluster.http}/v1/chat/completions", json=body, timeout=30)
        assert chat(client, max_tokens=4).choices[0].finish_reason == "length"
        assert not refused.done()
        assert plain_http.get(f"{cluster.http}/health", timeout=1).status_code == 200
        assert refused.result().status_code == 400
    assert "too complex" in refused.result().json()["error"]["message"]
    chat(client, extra_body={"regex": "a"})


def test_the_process_that_tries_grammars_ends_when_its_proxy_is_killed(
    real_model: Path, tmp_path: Path, cluster: Processes
) -> None:
    with Processes(real_model, tmp_path) as other:
        other.controller.set_members([worker.member() for worker in cluster.workers])
        before = set(checkers())
        other.start_proxy()
        answer = plain_http.post(f"{other.http}/v1/completions", json={"prompt": "a", "regex": "a"}, timeout=30)
        assert answer.status_code == 200
        (checker,) = set(checkers()) - before
        proxy = checker.parent()
        assert proxy is not None
        proxy.kill()
        checker.wait(5)


def checkers() -> list[psutil.Process]:
    """Of the proxies that this test started."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "proxy.grammar.grammar_checker" in child.cmdline()]
