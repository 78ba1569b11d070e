"""Text over HTTP: characters of many bytes, stop strings across tokens, and usage; streamed and whole are the same."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from rpc import worker_pb2
from tests.unit.proxy.conftest import Cluster, events

TEXTS = (
    "🙂🎉",
    "👨‍👩‍👧‍👦 family 🏳️‍🌈",
    "日本語のテキスト",
    "ภาษาไทย",
    "žluťoučký kůň",
    "a" + "\u0301" * 30,
    "\u202eabc\u202c",
)
HI = [{"role": "user", "content": "hi"}]


async def stream(http: httpx.AsyncClient, **fields: object) -> list[str]:
    """The pieces of text of a completion."""
    async with http.stream("POST", "/v1/completions", json={"stream": True, **fields}) as response:
        assert response.status_code == 200, await response.aread()
        *chunks, done = await events(response)
    assert done == "[DONE]"
    return [choice["text"] for chunk in chunks for choice in chunk["choices"]]


async def whole(http: httpx.AsyncClient, **fields: object) -> Any:
    response = await http.post("/v1/completions", json=fields)
    assert response.status_code == 200, response.text
    return response.json()


def repeat_the_prompt(served: Cluster) -> None:
    """Each request is answered with its prompt, a token at a time, up to `max_tokens`."""

    def speak(start: worker_pb2.StartDecode) -> None:
        said = bytes(start.request.prompt_ids)[: start.request.sampling.max_tokens]
        for index in range(len(said)):
            served.decode.say(
                start, said[index : index + 1], index=index, finish="length" if index == len(said) - 1 else ""
            )

    served.decode.on_start = speak


async def test_characters_of_many_tokens_come_whole_in_32_streams_at_once(
    served: Cluster, http: httpx.AsyncClient
) -> None:
    repeat_the_prompt(served)
    texts = [f"{number} {TEXTS[number % len(TEXTS)]}" for number in range(32)]
    streams = await asyncio.gather(*(stream(http, prompt=text) for text in texts))
    assert ["".join(pieces) for pieces in streams] == texts
    assert not any("\ufffd" in piece for pieces in streams for piece in pieces)


@pytest.mark.parametrize("cut", [1, 2, 3])
async def test_a_character_that_max_tokens_cuts_is_one_replacement_at_the_end(
    served: Cluster, http: httpx.AsyncClient, cut: int
) -> None:
    repeat_the_prompt(served)
    fields = {"prompt": "ab🙂", "max_tokens": 2 + cut}
    assert await stream(http, **fields) == ["a", "b", "\ufffd", ""]
    answer = await whole(http, **fields)
    assert answer["choices"][0]["text"] == "ab\ufffd"
    assert answer["usage"]["completion_tokens"] == 2 + cut


@pytest.mark.parametrize("given", [1, 2, 3])
async def test_a_prompt_that_ends_inside_a_character_is_not_repeated(
    served: Cluster, http: httpx.AsyncClient, given: int
) -> None:
    character = "🙂".encode()
    served.decode.answer(character[given:] + b"!", size=1)
    prompt = [*b"a prompt", *character[:given]]
    assert await stream(http, prompt=prompt) == ["🙂", "!", ""]
    assert (await whole(http, prompt=prompt))["choices"][0]["text"] == "🙂!"


@pytest.mark.parametrize(
    ("said", "stop", "text", "num_tokens"),
    [
        ("one END two", "END", "one ", 7),
        ("one EN", "END", "one EN", 6),  # a near miss at the end
        ("one ENE END", ["END", "xyz"], "one ENE ", 11),
        ("END", "END", "", 3),  # at once
        ("aš🙂š", "🙂", "aš", 7),
        ("no such", ["x", "y"], "no such", 7),
    ],
)
async def test_nothing_of_a_stop_string_is_sent_and_near_misses_are_sent_in_full(
    served: Cluster, http: httpx.AsyncClient, said: str, stop: object, text: str, num_tokens: int
) -> None:
    for size in (1, 2, 5):
        served.decode.answer(said.encode(), size=size)
        assert "".join(await stream(http, prompt="hi", stop=stop)) == text
        answer = await whole(http, prompt="hi", stop=stop)
        assert answer["choices"][0]["text"] == text
        assert answer["usage"]["completion_tokens"] == num_tokens
        assert answer["choices"][0]["finish_reason"] == ("length" if said == text else "stop")


async def test_a_stop_string_is_part_of_the_text_when_asked_for(served: Cluster, http: httpx.AsyncClient) -> None:
    served.decode.answer(b"one END two")
    fields = {"prompt": "hi", "stop": "END", "include_stop_str_in_output": True}
    assert "".join(await stream(http, **fields)) == "one END"
    assert (await whole(http, **fields))["choices"][0]["text"] == "one END"


async def test_no_stop_string_counts_before_min_tokens(served: Cluster, http: httpx.AsyncClient) -> None:
    served.decode.answer(b"END END END", size=1)
    assert "".join(await stream(http, prompt="hi", stop="END", min_tokens=4)) == "END "


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_the_usage_of_a_stream_comes_once_with_all_choices_counted(
    served: Cluster, http: httpx.AsyncClient, path: str
) -> None:
    served.decode.answer(b"abcd")
    body = {"messages": HI} if path == "/v1/chat/completions" else {"prompt": "hi"}
    asked = {**body, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    async with http.stream("POST", path, json=asked) as response:
        *chunks, last, done = await events(response)
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    answer = (await http.post(path, json={**body, "n": 2})).json()
    assert last["usage"] == answer["usage"]
    assert answer["usage"]["completion_tokens"] == 8
