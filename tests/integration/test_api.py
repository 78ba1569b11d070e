"""What clients may send, and what they get: absent and odd token limits, empty prompts, bad input of every kind."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from engine.fake_runner import FakeRunner
from tests import plain_http
from tests.integration.processes import Processes

pytestmark = pytest.mark.integration

CANARY = "the canary sings"


def expected_text(prompt: str, max_tokens: int) -> str:
    return bytes(FakeRunner.expected(prompt.encode(), max_tokens)).decode()


def post(cluster: Processes, path: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return plain_http.post(
        f"{cluster.http}{path}", content=content, headers={"content-type": "application/json"}, timeout=30
    )


def check_canary(cluster: Processes) -> None:
    assert cluster.text(CANARY) == expected_text(CANARY, 8)


@pytest.mark.parametrize(
    ("fields", "num_tokens"),
    [({}, None), ({"max_tokens": None}, None), ({"max_tokens": 1}, 1), ({"max_tokens": 2}, 2)],
)
def test_max_tokens_absent_fills_the_context_and_small_values_are_kept(
    fake_cluster: Processes, fields: dict[str, Any], num_tokens: int | None
) -> None:
    prompt = "x" * 4080  # 16 tokens below the fake model's context
    response = post(fake_cluster, "/v1/completions", {"model": "test", "prompt": prompt, "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["usage"]["completion_tokens"] == (num_tokens or 16)
    assert body["choices"][0]["finish_reason"] == "length"
    fake_cluster.wait_idle()
    check_canary(fake_cluster)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, 10**9, "many", 1.5])
def test_an_impossible_max_tokens_is_refused_by_name(fake_cluster: Processes, field: str, value: object) -> None:
    body = {"model": "test", "messages": [{"role": "user", "content": "hi"}], field: value}
    response = post(fake_cluster, "/v1/chat/completions", body)
    assert response.status_code == 400, response.text
    assert "max" in response.json()["error"]["message"]
    check_canary(fake_cluster)


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, 7, {"a": 1}])
def test_an_empty_or_odd_prompt_is_refused(fake_cluster: Processes, prompt: object) -> None:
    response = post(fake_cluster, "/v1/completions", {"model": "test", "prompt": prompt, "max_tokens": 4})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "prompt"
    check_canary(fake_cluster)


@pytest.mark.parametrize("prompt", [" ", "\n\t ", "a", [97], [97, 98]])
def test_a_short_prompt_is_answered(fake_cluster: Processes, prompt: str | list[int]) -> None:
    assert fake_cluster.complete(prompt, 3).json()["usage"]["completion_tokens"] == 3
    check_canary(fake_cluster)


@pytest.mark.parametrize("messages", [[], None, "hi", [{"role": "user"}], [{"role": "user", "content": None}]])
def test_chat_without_content_is_refused(fake_cluster: Processes, messages: object) -> None:
    response = post(fake_cluster, "/v1/chat/completions", {"model": "test", "messages": messages})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"
    check_canary(fake_cluster)


def test_echo_with_no_tokens_is_answered_or_refused_but_kills_nothing(fake_cluster: Processes) -> None:
    body = {"model": "test", "prompt": "hello", "max_tokens": 0, "echo": True}
    assert post(fake_cluster, "/v1/completions", body).status_code in (200, 400)
    check_canary(fake_cluster)


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"model": "nobody", "prompt": "a"}, 404, "nobody"),
        ({"model": "test", "prompt": "a", "temprature": 1}, 400, "temprature"),
        ({"model": "test", "prompt": "a", "temperature": -0.1}, 400, "temperature"),
        ({"model": "test", "prompt": "a", "temperature": "hot"}, 400, "temperature"),
        ({"model": "test", "prompt": "a", "top_p": 1.5}, 400, "top_p"),
        ({"model": "test", "prompt": "a", "seed": "x"}, 400, "seed"),
        ({"model": "test", "prompt": "x" * 5000}, 400, "4096"),
        ({"model": "test", "prompt": "a", "n": 129}, 400, "n"),
        ({"model": "test", "prompt": "a", "logit_bias": {"257": 1}}, 400, "257"),
        ({"model": "test", "prompt": "a", "prompt_logprobs": 1}, 400, "prompt_logprobs"),
        (b'{"model": "test", "prompt": "a\\ud800b"}', 400, "JSON"),
        (b'{"model": "test", "prompt": "a", "stop": "\\udc00"}', 400, "surrogate"),
        (b'{"model": "test", "prompt": "\xff"}', 400, ""),
        (b'{"model": "test", ', 400, "JSON"),
        (b"", 400, ""),
        (b"[1, 2]", 400, ""),
    ],
)
def test_bad_input_is_refused_by_name_and_the_next_request_works(
    fake_cluster: Processes, body: Any, status: int, named: str
) -> None:
    response = post(fake_cluster, "/v1/completions", body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert named in error["message"]
    check_canary(fake_cluster)


@pytest.mark.parametrize(
    "words",
    [
        {"headers": {}, "fields": {"priority": -10}},
        {"headers": {"x-priority": "batch"}, "fields": {"priority": 10}},
        {"headers": {"x-tenant": "acme"}, "fields": {}},
        {"headers": {}, "fields": {"cache_salt": "s"}},
        {"headers": {"x-tenant": "acme"}, "fields": {"cache_salt": "s"}},
    ],
)
def test_a_prompt_is_cached_for_its_own_tenant_and_salt_only(
    fake_cluster: Processes, words: dict[str, dict[str, Any]]
) -> None:
    prompt = "0123456789abcdef" * 4 + "."

    def num_cached(headers: dict[str, str], fields: dict[str, Any]) -> int:
        body = {"model": "test", "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
        response = plain_http.post(f"{fake_cluster.http}/v1/completions", json=body, headers=headers, timeout=30)
        assert response.json()["choices"][0]["text"] == expected_text(prompt, 8)
        return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    num_cached({}, {})
    assert num_cached({}, {}) == 64
    has_another_salt = "x-tenant" in words["headers"] or "cache_salt" in words["fields"]
    assert num_cached(**words) == (0 if has_another_salt else 64)
    assert num_cached(**words) == 64


def test_streamed_and_whole_answers_are_the_same(fake_cluster: Processes) -> None:
    body = {"model": "test", "prompt": "stream me", "max_tokens": 12, "temperature": 0, "stream": True}
    pieces = []
    with plain_http.stream("POST", f"{fake_cluster.http}/v1/completions", json=body, timeout=30) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                pieces.append(json.loads(line[6:])["choices"][0]["text"])
    assert "".join(pieces) == fake_cluster.text("stream me", 12) == expected_text("stream me", 12)


def complete(cluster: Processes, **fields: Any) -> Any:
    response = post(cluster, "/v1/completions", {"model": "test", "max_tokens": 8, **fields})
    assert response.status_code == 200, response.text
    return json.loads(response.content, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize("prompt", ["choose", ["choose", "among"]])
def test_with_a_seed_the_first_choice_is_that_of_a_request_for_one(fake_cluster: Processes, prompt: Any) -> None:
    one = complete(fake_cluster, prompt=prompt, temperature=1, seed=7)
    four = complete(fake_cluster, prompt=prompt, temperature=1, seed=7, n=4)
    texts = [choice["text"] for choice in four["choices"]]
    assert texts[::4] == [choice["text"] for choice in one["choices"]]
    assert len(set(texts)) == len(texts)
    assert four["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert four["usage"]["completion_tokens"] == 4 * one["usage"]["completion_tokens"]
    fake_cluster.wait_idle()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"top_k": 1},
        {"logit_bias": {str(token_id): -100 for token_id in range(97, 110)}},
        {"stop": "zzz", "min_tokens": 8},
    ],
)
def test_every_token_has_finite_logprobs_the_first_too_whole_and_streamed(
    fake_cluster: Processes, fields: dict[str, Any]
) -> None:
    asked = {"prompt": "how sure", "temperature": 0, "logprobs": 20, **fields}
    choice = complete(fake_cluster, **asked)["choices"][0]
    told = choice["logprobs"]
    assert (told["tokens"], told["text_offset"]) == (list(choice["text"]), list(range(8)))
    assert all(-9999 <= value <= 0 for value in told["token_logprobs"])
    assert all(len(top) in (20, 21) for top in told["top_logprobs"])
    streamed: list[float] = []
    with plain_http.stream(
        "POST", f"{fake_cluster.http}/v1/completions", json={"max_tokens": 8, "stream": True, **asked}, timeout=30
    ) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                logprobs = json.loads(line[6:])["choices"][0]["logprobs"]
                streamed += logprobs["token_logprobs"] if logprobs else []
    assert streamed == told["token_logprobs"]
    check_canary(fake_cluster)


@pytest.mark.parametrize(
    "fields",
    [
        *({"temperature": value} for value in (0, 1e-8, 1e-4)),
        *({"top_p": value} for value in (0, 1e-8, 1e-4)),
        {"top_k": 1, "temperature": 2},
        {"temperature": 0, "min_p": 1},
        {"temperature": 0, "seed": 2**64 - 1},
        {"temperature": 0, "stop_token_ids": list(range(256))[:97], "ignore_eos": True},
    ],
)
def test_the_smallest_and_largest_values_are_answered(fake_cluster: Processes, fields: dict[str, Any]) -> None:
    assert complete(fake_cluster, prompt="extreme", **{"seed": 1, **fields})["usage"]["completion_tokens"] == 8
    check_canary(fake_cluster)


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 2, "presence_penalty": -2, "frequency_penalty": 2},
        {"logit_bias": {str(token_id): 100 for token_id in range(257)}},
        {"min_tokens": 8, "logit_bias": {"256": 100}},
    ],
)
def test_penalties_and_biases_at_their_limits_are_answered(fake_cluster: Processes, fields: dict[str, Any]) -> None:
    assert complete(fake_cluster, prompt="extreme", temperature=0, **fields)["usage"]["completion_tokens"] == 8
    check_canary(fake_cluster)


def test_a_bias_forces_a_token_and_a_stop_string_over_tokens_ends_the_text(fake_cluster: Processes) -> None:
    forced = complete(fake_cluster, prompt="force", temperature=0, logit_bias={"33": 100}, stop="!!!")
    assert (forced["choices"][0]["text"], forced["choices"][0]["finish_reason"]) == ("", "stop")
    assert forced["usage"]["completion_tokens"] == 3
    near = complete(fake_cluster, prompt="force", temperature=0, logit_bias={"33": 100}, stop="!!x", echo=True)
    assert near["choices"][0]["text"] == "force" + 8 * "!"
    fake_cluster.wait_idle()
