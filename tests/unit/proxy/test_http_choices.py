"""Several choices and prompts, the echoed prompt and logprobs over HTTP, with the `openai` client and without."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import httpx
import openai
import pytest

from rpc import worker_pb2
from tests.unit.proxy.conftest import EOS, Cluster, events, strict_json
from tests.unit.proxy.fake_worker import PATIENCE_S

HI: list[Any] = [{"role": "user", "content": "hi"}]
EMOJI = "🙂"


async def stream(http: httpx.AsyncClient, path: str, **fields: object) -> list[Any]:
    """The choices of all chunks, in order."""
    async with http.stream("POST", path, json={"stream": True, **fields}) as response:
        assert response.status_code == 200, await response.aread()
        chunks = await events(response)
    assert chunks.pop() == "[DONE]"
    return [choice for chunk in chunks for choice in chunk["choices"]]


async def whole(http: httpx.AsyncClient, path: str, **fields: object) -> Any:
    response = await http.post(path, json=fields)
    assert response.status_code == 200, response.text
    return strict_json(response.content)


def say_number(served: Cluster) -> None:
    """From now on the requests get the texts "0", "1", … in the order in which they come."""
    number = 0

    def speak(start: worker_pb2.StartDecode) -> None:
        nonlocal number
        served.decode.say(start, b"%d" % number, finish="length")
        number += 1

    served.decode.on_start = speak


async def test_the_openai_client_gets_n_choices_whole_and_streamed(served: Cluster, client: openai.AsyncOpenAI) -> None:
    say_number(served)
    answer = await client.chat.completions.create(model="bytes", messages=HI, n=3)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [(0, "0"), (1, "1"), (2, "2")]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (20, 3)
    say_number(served)
    texts: dict[int, str] = defaultdict(str)
    roles: dict[int, str | None] = {}
    ends: dict[int, str] = {}
    usage = None
    async for chunk in await client.chat.completions.create(
        model="bytes", messages=HI, n=3, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            roles.setdefault(choice.index, choice.delta.role)
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason is not None:
                assert choice.index not in ends
                ends[choice.index] = choice.finish_reason
    assert texts == {0: "0", 1: "1", 2: "2"}
    assert roles == dict.fromkeys(range(3), "assistant")
    assert ends == dict.fromkeys(range(3), "length")
    assert usage == answer.usage


async def test_the_openai_client_gets_several_prompts_answered_in_order(
    served: Cluster, client: openai.AsyncOpenAI
) -> None:
    served.decode.answer(b"x")
    answer = await client.completions.create(model="bytes", prompt=["one ", "two "], n=2, echo=True, best_of=2)
    assert [choice.text for choice in answer.choices] == ["one x", "one x", "two x", "two x"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (8, 4)
    ids = await client.completions.create(model="bytes", prompt=[[*b"one "], [*b"two "]], echo=True)
    assert [choice.text for choice in ids.choices] == ["one x", "two x"]


async def test_the_streams_of_the_choices_are_interleaved_as_they_come(
    served: Cluster, http: httpx.AsyncClient
) -> None:
    told: list[worker_pb2.StartDecode] = []

    def speak(start: worker_pb2.StartDecode) -> None:
        told.append(start)
        if len(told) == 2:
            for index in range(3):
                for position, each in enumerate(told):
                    served.decode.say(each, b"%d" % position, index=index, finish="length" if index == 2 else "")

    served.decode.on_start = speak
    choices = await stream(http, "/v1/completions", prompt="hi", n=2)
    spoken = [(choice["index"], choice["text"]) for choice in choices if choice["text"]]
    assert spoken == [(0, "0"), (1, "1")] * 3
    assert [choice["index"] for choice in choices if choice["finish_reason"]] == [0, 1]


async def test_a_client_that_goes_away_ends_every_choice(served: Cluster, http: httpx.AsyncClient) -> None:
    told: list[worker_pb2.StartDecode] = []

    def speak(start: worker_pb2.StartDecode) -> None:
        told.append(start)
        served.decode.say(start, b"a")

    served.decode.on_start = speak
    async with http.stream("POST", "/v1/completions", json={"prompt": "hi", "n": 2, "stream": True}) as response:
        lines = response.aiter_lines()
        while len(told) < 2:
            await anext(lines)
    aborted = {(await served.decode.next_abort()).request_id for _ in range(2)}
    assert aborted == {start.request.request_id for start in told}
    await served.until(lambda: served.metric("pdserve_requests_in_flight") == 0)


async def test_a_choice_that_fails_after_the_first_token_ends_the_stream_with_an_error(
    served: Cluster, http: httpx.AsyncClient
) -> None:
    started = False

    def speak(start: worker_pb2.StartDecode) -> None:
        nonlocal started
        if started:
            served.decode.failed(start, worker_pb2.FAILURE_INVALID, "it cannot be")
        else:
            served.decode.say(start, b"a")
        started = True

    served.decode.on_start = speak
    body = {"prompt": "hi", "n": 2, "stream": True}
    async with http.stream("POST", "/v1/completions", json=body) as response:
        chunks = await events(response)
    assert chunks[-1]["error"]["message"] == "it cannot be"
    assert not any(choice["finish_reason"] for chunk in chunks[:-1] for choice in chunk["choices"])


@pytest.mark.parametrize(
    ("prompt", "echoed"),
    [("hi ", "hi "), ([*b"hi "], "hi "), ([EOS, *b"hi"], "hi"), ([*b"hi", *EMOJI.encode()[:2]], "hi")],
)
async def test_an_echoed_prompt_is_the_first_chunk_and_a_character_it_began_is_whole(
    served: Cluster, http: httpx.AsyncClient, prompt: object, echoed: str
) -> None:
    rest = EMOJI.encode()[2:] if echoed == "hi" and prompt != [EOS, *b"hi"] else b""
    served.decode.answer(rest + b"!", size=1)
    choices = await stream(http, "/v1/completions", prompt=prompt, echo=True)
    assert choices[0]["text"] == echoed
    joined = "".join(choice["text"] for choice in choices)
    assert joined == echoed + (EMOJI if rest else "") + "!"
    answer = await whole(http, "/v1/completions", prompt=prompt, echo=True)
    assert answer["choices"][0]["text"] == joined
    assert answer["usage"]["completion_tokens"] == len(rest) + 1


async def test_the_openai_client_gets_the_logprobs_of_a_chat(served: Cluster, client: openai.AsyncOpenAI) -> None:
    served.decode.answer(b"ab", size=1)
    answer = await client.chat.completions.create(model="bytes", messages=HI, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(entry.token, entry.logprob, entry.bytes) for entry in logprobs.content] == [
        ("a", -0.5, [97]),
        ("b", -0.5, [98]),
    ]
    assert [(top.token, top.logprob) for top in logprobs.content[0].top_logprobs] == [("a", -0.5), ("b", -1.0)]
    streamed = await client.chat.completions.create(
        model="bytes", messages=HI, logprobs=True, top_logprobs=2, stream=True
    )
    chunks = [chunk.choices[0].logprobs async for chunk in streamed]
    assert [entry for each in chunks if each for entry in each.content or []] == logprobs.content


async def test_the_openai_client_gets_the_logprobs_of_a_completion(served: Cluster, client: openai.AsyncOpenAI) -> None:
    served.decode.answer(b"ab", size=1)
    answer = await client.completions.create(model="bytes", prompt="hi", logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert (logprobs.tokens, logprobs.token_logprobs, logprobs.text_offset) == (["a", "b"], [-0.5, -0.5], [0, 1])
    assert logprobs.top_logprobs == [{"a": -0.5, "b": -1.0}, {"b": -0.5, "c": -1.0}]


async def test_logprobs_alone_tell_the_chosen_token_and_none_are_told_unasked(
    served: Cluster, http: httpx.AsyncClient
) -> None:
    served.decode.answer(b"a", size=1)
    chat = await whole(http, "/v1/chat/completions", messages=HI, logprobs=True)
    assert [entry["top_logprobs"] for entry in chat["choices"][0]["logprobs"]["content"]] == [[]]
    text = await whole(http, "/v1/completions", prompt="hi", logprobs=0)
    assert text["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.5}]
    for unasked in (None, False):
        answer = await whole(http, "/v1/chat/completions", messages=HI, logprobs=unasked, top_logprobs=None)
        assert answer["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("size", [1, 3])
async def test_every_token_that_counts_has_one_entry_whole_and_streamed_whatever_is_held_back(
    served: Cluster, http: httpx.AsyncClient, size: int
) -> None:
    served.decode.answer(f"a{EMOJI}ENDLESS END more".encode(), size=size)
    fields: dict[str, Any] = {"prompt": "hi", "logprobs": 3, "stop": "END "}
    answer = await whole(http, "/v1/completions", **fields)
    choice = answer["choices"][0]
    assert choice["text"] == f"a{EMOJI}ENDLESS "
    counted = f"a{EMOJI}ENDLESS END ".encode()
    assert answer["usage"]["completion_tokens"] == len(counted)
    lengths = {name: len(values) for name, values in choice["logprobs"].items()}
    assert lengths == dict.fromkeys(("tokens", "token_logprobs", "top_logprobs", "text_offset"), len(counted))
    chunks = await stream(http, "/v1/completions", **fields)
    joined: dict[str, list[Any]] = defaultdict(list)
    for chunk in chunks:
        for name, values in (chunk["logprobs"] or {}).items():
            joined[name] += values
    assert joined == choice["logprobs"]
    assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
    offset = 0
    for chunk in chunks[:-1]:  # each entry comes with its text, or after it was held back
        assert {offset <= begin < offset + len(chunk["text"]) for begin in chunk["logprobs"]["text_offset"]} == {True}
        offset += len(chunk["text"])
    assert chunks[-1]["finish_reason"] == "stop"


async def test_logprobs_follow_a_request_that_moves(served: Cluster, http: httpx.AsyncClient) -> None:
    def speak(start: worker_pb2.StartDecode) -> None:
        accepted = bytes(start.request.output_ids)
        if accepted:
            served.decode.say(start, b"cd", index=2, finish="length")
        else:
            served.decode.say(start, b"ab")
            served.decode.handoff_failed(start)

    served.decode.on_start = speak
    answer = await whole(http, "/v1/completions", prompt="hi", logprobs=1)
    assert answer["choices"][0]["logprobs"]["tokens"] == list("abcd")


async def test_a_worker_that_forgets_the_logprobs_is_not_believed(served: Cluster, http: httpx.AsyncClient) -> None:
    attempts = 0

    def speak(start: worker_pb2.StartDecode) -> None:
        nonlocal attempts
        attempts += 1
        served.decode.say(start, b"ab", finish="length", logprobs=[] if attempts == 1 else None)

    served.decode.on_start = speak
    answer = await whole(http, "/v1/completions", prompt="hi", logprobs=1)
    assert (attempts, len(answer["choices"][0]["logprobs"]["tokens"])) == (2, 2)


@pytest.mark.parametrize("value", [-float("inf"), float("nan"), float("inf"), -3e38])
async def test_logprobs_that_json_cannot_say_are_clamped(
    served: Cluster, http: httpx.AsyncClient, value: float
) -> None:
    wire = worker_pb2.TokenLogprobs(logprob=value, top_ids=[97, 98], top_logprobs=[0.0, value])

    def speak(start: worker_pb2.StartDecode) -> None:
        served.decode.say(start, b"a", logprobs=[wire], finish="length")

    served.decode.on_start = speak
    clamped = 0.0 if value == float("inf") else -9999.0
    answer = await whole(http, "/v1/completions", prompt="hi", logprobs=2)
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [clamped]
    (_, chunk, _) = await stream(http, "/v1/chat/completions", messages=HI, logprobs=True, top_logprobs=2)
    assert [top["logprob"] for top in chunk["logprobs"]["content"][0]["top_logprobs"]] == [0.0, clamped]


@pytest.mark.parametrize(
    ("path", "fields", "param", "says"),
    [
        ("completions", {"logprobs": 21}, "logprobs", "0 to 20"),
        ("completions", {"logprobs": -1}, "logprobs", "0 to 20"),
        ("completions", {"logprobs": 1, "echo": True}, "echo", "together with logprobs"),
        ("completions", {"prompt_logprobs": 1}, "prompt_logprobs", "not supported"),
        ("completions", {"best_of": 3, "n": 2}, "best_of", "value of n"),
        ("completions", {"n": 129}, "n", "1 to 128"),
        ("completions", {"n": 0}, "n", "1 to 128"),
        ("completions", {"prompt": ["a"] * 3, "n": 64}, "n", "128 choices"),
        ("chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "0 to 20"),
        ("chat/completions", {"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
        ("chat/completions", {"logprobs": 5}, "logprobs", "boolean"),
        ("chat/completions", {"echo": True}, "echo", "not supported"),
    ],
)
async def test_what_cannot_be_answered_is_refused_by_name(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str, says: str
) -> None:
    asked = {"messages": HI} if path == "chat/completions" else {"prompt": "hi"}
    response = await http.post(f"/v1/{path}", json={**asked, **fields}, timeout=PATIENCE_S)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert says in error["message"]
