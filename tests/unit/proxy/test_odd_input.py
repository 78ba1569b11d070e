"""Odd and hostile values in every field: each is refused by name or answered, and the next request works."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from proxy.errors import ApiError
from proxy.model import ServedModel
from proxy.openai.api import ChatBody, CompletionBody
from tests.unit.proxy.conftest import Cluster, admit, strict_json

NUMBERS: dict[str, str] = {  # as JSON, or as what some clients take for it
    **{name: name for name in ("NaN", "Infinity", "-Infinity", "-1e999", "null", "true", "[]", "{}")},
    **{"text": '"abc"', "a number as text": '"0.5"', "no text": '""'},
    **{name: name for name in ("-1", "0", "1e-8", "1e-4", "1.5", "1e308", "-1e308", str(2**70), str(-(2**70)))},
}
SMALL = {"0", "1e-8", "1e-4"}
ANSWERED: dict[str, set[str]] = {  # besides null; all else is refused
    "temperature": {*SMALL, "1.5"},
    "top_p": SMALL,
    "top_k": {"-1", "0"},
    "min_p": SMALL,
    "presence_penalty": {*SMALL, "-1", "1.5"},
    "frequency_penalty": {*SMALL, "-1", "1.5"},
    "repetition_penalty": {"1.5"},
    "seed": {"-1", "0"},
    "logit_bias": {"{}"},
    "logit_bias.5": {*SMALL, "-1", "1.5"},
    "stop_token_ids": {"[]"},
    "stop_token_ids.0": {"0"},
    "stop": {"[]", '"abc"', '"0.5"'},
    "max_tokens": set(),
    "min_tokens": {"0"},
    "n": set(),
    "ignore_eos": {"true"},
    "include_stop_str_in_output": {"true"},
}
BIAS_KEYS = ("-1", "257", "1.5", "", "x", "0x5", "\u0663", "9" * 11, "9" * 5000, "05", " 5", "5 ", "null", "\ufeff5")
TEXTS: dict[str, bytes] = {
    "a lone high surrogate": rb"a\ud800b",
    "a lone low surrogate": rb"a\udc00b",
    "surrogates the wrong way round": rb"\ude42\ud83d",
    "invalid UTF-8": b"a\xff\xfeb",
    "half a character": "🙂".encode()[:2],
    "an overlong NUL": b"a\xc0\x80b",
    "a surrogate in UTF-8": b"a\xed\xa0\x80b",
    "a raw NUL": b"a\0b",
    "NUL": rb"a\u0000b",
    "a byte order mark": rb"\ufeffa",
    "right to left": rb"\u202ea\u200f\u2067b",
    "combining marks": b"a" + "\u0301".encode() * 200,
    "10,000 combining marks": b"a" + "\u0301".encode() * 10_000,
    "a family": "👨‍👩‍👧‍👦".encode(),
    "no character": rb"\uffff\ufffe",
}
REFUSED = tuple(TEXTS)[:8]


def body_with(field: str, value: str, asked: dict[str, Any]) -> str:
    """`value` is JSON. A field `name.key` stands for a list or an object with one entry."""
    name, _, key = field.partition(".")
    if key:
        value = f"[{value}]" if key == "0" else f'{{"{key}": {value}}}'
    return json.dumps(asked)[:-1] + f', "{name}": {value}}}'


def check_error(response: httpx.Response) -> None:
    """OpenAI's form, and nothing of what is inside."""
    error = strict_json(response.content)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert not any(word in error["message"] for word in ("Traceback", "pydantic", ".py", "codec"))


async def check_canary(http: httpx.AsyncClient) -> None:
    canary = await http.post("/v1/completions", json={"prompt": "the canary"})
    assert canary.json()["choices"][0]["text"] == "sings"


@pytest.fixture
def http(served: Cluster, http: httpx.AsyncClient) -> httpx.AsyncClient:
    """Every request is answered."""
    served.decode.answer(b"sings", size=1)
    return http


@pytest.mark.parametrize("value", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("kind", [CompletionBody, ChatBody])
def test_each_number_in_each_field_is_refused_by_name_or_taken(
    model: ServedModel, kind: type[CompletionBody] | type[ChatBody], value: str
) -> None:
    asked = {"prompt": "hi"} if kind is CompletionBody else {"messages": [{"role": "user", "content": "hi"}]}
    for field, answered in ANSWERED.items():
        body = body_with(field, value, asked).encode()
        if value in answered or (value == "null" and "." not in field):
            admit(body, kind, model)
            continue
        with pytest.raises(ApiError) as refusal:
            admit(body, kind, model)
        assert (refusal.value.param or "").split(".")[0] == field.split(".")[0], refusal.value.message


@pytest.mark.parametrize("key", BIAS_KEYS, ids=lambda key: ascii(key[:8]))
def test_what_is_no_token_id_in_a_bias_is_refused_by_name(model: ServedModel, key: str) -> None:
    with pytest.raises(ApiError) as refusal:
        admit(json.dumps({"prompt": "hi", "logit_bias": {key: 1}}).encode(), CompletionBody, model)
    assert refusal.value.param == "logit_bias"
    assert len(refusal.value.message) < 200


def test_the_whole_vocabulary_may_be_biased_up_to_the_limit(model: ServedModel) -> None:
    biases = {str(i): 1 for i in range(257)}
    admit(json.dumps({"prompt": "hi", "logit_bias": biases}).encode(), CompletionBody, model)


async def test_refusals_reach_the_client_and_cost_nobody_else_anything(http: httpx.AsyncClient) -> None:
    for field, value in (("temperature", "NaN"), ("top_k", "1.5"), ("logit_bias.5", "1e999"), ("seed", str(2**70))):
        response = await http.post("/v1/completions", content=body_with(field, value, {"prompt": "hi"}))
        assert response.status_code == 400
        check_error(response)
        await check_canary(http)


async def test_odd_texts_are_refused_before_any_stream_or_answered(http: httpx.AsyncClient) -> None:
    places = {
        "prompt": ("/v1/completions", b'{"prompt": "%s"'),
        "content": ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "%s"}]'),
        "stop": ("/v1/completions", b'{"prompt": "hi", "stop": ["%s"]'),
        "model": ("/v1/completions", b'{"prompt": "hi", "model": "%s"'),
    }
    wrong = []
    for place, (path, template) in places.items():
        for name, text in TEXTS.items():
            response = await http.post(path, content=template % text + b', "stream": true}')
            if response.status_code != 200:
                check_error(response)
            expected = 404 if place == "model" else 200
            if name in REFUSED or (name == "10,000 combining marks" and place != "model"):
                expected = 400  # not characters; or longer than the context, or a stop string, may be
            if response.status_code != expected:
                wrong.append((place, name, response.status_code, response.text))
        await check_canary(http)
    assert not wrong


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_a_body_in_another_encoding_is_refused(model: ServedModel, encoding: str) -> None:
    with pytest.raises(ApiError):
        admit('{"prompt": "é"}'.encode(encoding), CompletionBody, model)
