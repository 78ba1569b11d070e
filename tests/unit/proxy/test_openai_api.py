"""OpenAI's request bodies: what is read, what is refused, and that the refusal names the field."""

from __future__ import annotations

import json

import pytest

from proxy.errors import ApiError, ErrorCode
from proxy.model import ServedModel
from proxy.openai.api import ChatBody, CompletionBody
from proxy.openai.body import parse
from proxy.request.sampling import Sampling
from proxy.text.prompt import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from tests.unit.proxy.conftest import admit

HI = [{"role": "user", "content": "hi"}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def body(**fields: object) -> bytes:
    return json.dumps({"prompt": "hi", **fields}).encode()


def chat(**fields: object) -> bytes:
    return json.dumps({"messages": HI, **fields}).encode()


def test_every_supported_field_is_read() -> None:
    raw = chat(
        model="m",
        max_completion_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        seed=-1,
        stop="x",
        stop_token_ids=[1],
        ignore_eos=True,
        include_stop_str_in_output=True,
        min_p=0.25,
        presence_penalty=-1,
        frequency_penalty=0.5,
        repetition_penalty=1.25,
        logit_bias={"5": -100, "200": 1.5},
        min_tokens=2,
        logprobs=True,
        top_logprobs=4,
        n=3,
        stream=True,
        stream_options={"include_usage": True},
        user="me",
    )
    parsed = parse(raw, ChatBody)
    expected = Sampling(
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        seed=-1,
        stop_token_ids=(1,),
        ignore_eos=True,
        stop=("x",),
        include_stop_str_in_output=True,
        min_p=0.25,
        presence_penalty=-1.0,
        frequency_penalty=0.5,
        repetition_penalty=1.25,
        logit_bias=((5, -100.0), (200, 1.5)),
        min_tokens=2,
        num_logprobs=4,
        n=3,
    )
    assert (parsed.sampling(), parsed.streams, parsed.wants_usage) == (expected, True, True)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", [TextPrompt("hi")]),
        (["hi"], [TextPrompt("hi")]),
        (["hi", "ho"], [TextPrompt("hi"), TextPrompt("ho")]),
        ([1, 2], [TokenPrompt((1, 2))]),
        ([[1, 2]], [TokenPrompt((1, 2))]),
        ([[1, 2], "ho"], [TokenPrompt((1, 2)), TextPrompt("ho")]),
    ],
)
def test_prompts_come_as_text_or_token_ids_alone_or_in_a_list(prompt: object, expected: list[Prompt]) -> None:
    assert parse(body(prompt=prompt), CompletionBody).to_prompts() == tuple(expected)


def test_chat_content_may_be_text_parts_and_the_developer_is_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": parts}]
    expected = ChatPrompt((ChatMessage("system", "d"), ChatMessage("user", "a\nb")))
    assert parse(chat(messages=messages), ChatBody).to_prompts() == (expected,)


def test_fields_that_ask_for_nothing_are_accepted() -> None:
    neutral = {
        "n": 1,
        "logprobs": False,
        "top_logprobs": 0,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "tools": [],
        "tool_choice": "auto",
        "regex": "",
        "response_format": {"type": "text"},
        "service_tier": "auto",
        "min_p": 0,
        "echo": False,
        "best_of": None,
        "suffix": None,
        "audio": None,
    }
    parse(chat(**neutral), ChatBody)
    nothing: dict[str, object] = {"refusal": None, "tool_calls": None, "annotations": []}
    spoken = {"role": "assistant", "content": "x", **nothing}
    parse(chat(messages=[*HI, spoken]), ChatBody).to_prompts()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", True),
        ("best_of", 2),
        ("best_of", 0),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("prompt_logprobs", 0),
        ("prompt_logprobs", 1),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("parallel_tool_calls", 1),
        ("function_call", {"name": "f"}),
        ("functions", [{"name": "f"}]),
        ("suffix", "end"),
        ("no_such_field", 1),
        ("no_such_field", None),
    ],
)
def test_what_is_not_supported_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ApiError, match=f"^{field}: ") as failure:
        parse(body(**{field: value}), CompletionBody)
    assert (failure.value.code, failure.value.param) == (ErrorCode.INVALID_ARGUMENT, field)


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("temperature", -0.1, "0 to 2"),
        ("temperature", 2.1, "0 to 2"),
        ("temperature", "0.5", "number"),
        ("temperature", True, "number"),
        ("top_p", -1, "0 to 1"),
        ("top_p", 1.01, "0 to 1"),
        ("top_k", -2, "-1 or 0"),
        ("top_k", 1.5, "integer"),
        ("top_k", 2**31, str(2**31 - 1)),
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", -5, "at least 1"),
        ("max_tokens", "many", "integer"),
        ("seed", 2**64, "64 bits"),
        ("seed", 1.5, "integer"),
        ("stop", "", "1 to 1024"),
        ("stop", ["a"] * 17, "at most 16"),
        ("stop", ["x" * 1025], "1 to 1024"),
        ("stop", 5, "array"),
        ("stop_token_ids", [257], "vocabulary of 257"),
        ("stop_token_ids", [-1], "vocabulary of 257"),
        ("stop_token_ids", [1.5], "integer"),
        ("stop_token_ids", [1] * 257, "at most 256"),
        ("stream", "yes", "boolean"),
        ("stream_options", {"include_usage": True}, "stream: true"),
        ("prompt", "", "empty"),
        ("prompt", [], "empty"),
        ("prompt", [""], "empty"),
        ("prompt", [[]], "empty"),
        ("prompt", None, "string"),
        ("prompt", ["a", ""], "empty"),
        ("prompt", ["a", 1], "whole numbers"),
        ("prompt", ["a", [257]], "vocabulary of 257"),
        ("prompt", [[[1]]], "whole numbers"),
        ("prompt", ["a"] * 129, "128 choices"),
        ("prompt", [1, "a"], "whole numbers"),
        ("prompt", [1, True], "whole numbers"),
        ("prompt", [257], "vocabulary of 257"),
        ("prompt", {"text": "x"}, "string"),
        ("prompt", "x" * 512, "512 tokens.*context is 512"),
        ("prompt", [1] * 600, "600 tokens.*context is 512"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_its_limit(
    model: ServedModel, field: str, value: object, limit: str
) -> None:
    with pytest.raises(ApiError, match=f"^{field}.*{limit}") as failure:
        admit(body(**{field: value}), CompletionBody, model)
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "top_k", "max_tokens", "seed", "presence_penalty", "min_p"])
def test_numbers_that_are_none_are_refused(model: ServedModel, field: str, number: bytes) -> None:
    with pytest.raises(ApiError) as failure:
        admit(b'{"prompt": "hi", "%s": %s}' % (field.encode(), number), CompletionBody, model)
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ("hi", "messages"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([{"role": "user", "content": 5}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages.0.content"),
        ([{"role": "function", "content": "x"}], "messages.0.role"),
        ([{"role": "tool", "content": "x"}], "messages.0.tool_call_id"),
        ([{"role": "tool", "tool_call_id": "1"}], "messages.0.content"),
        ([{"role": "user", "content": "x", "tool_call_id": "1"}], "messages.0.tool_call_id"),
        ([{"role": "assistant", "tool_calls": []}], "messages.0.content"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages.0.tool_calls"),
        ([{"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}], "messages.0.tool_calls.0.type"),
        (
            [{"role": "assistant", "tool_calls": [CALL, {**CALL, "function": {"name": "f", "arguments": "[1]"}}]}],
            "messages.0.tool_calls.1.function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}]}],
            "messages.0.tool_calls.0.function.arguments",
        ),
        (
            [
                {
                    "role": "assistant",
                    "tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}],
                }
            ],
            "messages.0.tool_calls.0.function.arguments",
        ),
        ([{"content": "x"}], "messages.0.role"),
        ([*HI, {"role": "user", "content": "x", "name": "bob"}], "messages.1.name"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], "messages.0.tool_calls.0.id"),
    ],
)
def test_a_bad_message_is_named_by_its_place(model: ServedModel, messages: object, param: str) -> None:
    with pytest.raises(ApiError) as failure:
        admit(chat(messages=messages), ChatBody, model)
    assert (failure.value.code, failure.value.param) == (ErrorCode.INVALID_ARGUMENT, param)


@pytest.mark.parametrize("content", ["", " \n", "\0", "\ufeff", "\u200f\u200e", "a" + "\u0301" * 200])
def test_odd_but_valid_texts_are_accepted(model: ServedModel, content: str) -> None:
    admit(chat(messages=[{"role": "user", "content": content}]), ChatBody, model)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\\udc00 x"}',
        b'{"prompt": "x", "stop": "\\ud83d"}',
        b'{"prompt": "x", "model": "\\ud800"}',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "x", "\\ud800": 1}',
        b"\xef\xbb\xbf{",
        b'{"prompt": ' + b"[" * 5000,
    ],
)
def test_what_is_not_json_of_characters_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError) as failure:
        parse(raw, CompletionBody)
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT
    failure.value.message.encode()  # no half characters go back


@pytest.mark.parametrize("value", [None, 1, 2, 10**6])
def test_both_names_of_the_limit_mean_the_same(value: int | None) -> None:
    assert parse(chat(max_completion_tokens=value), ChatBody).sampling().max_tokens == value
    assert parse(chat(max_tokens=value), ChatBody).sampling().max_tokens == value


def test_the_two_names_of_the_limit_must_agree() -> None:
    with pytest.raises(ApiError, match="max_completion_tokens"):
        parse(chat(max_tokens=3, max_completion_tokens=4), ChatBody).sampling()
    with pytest.raises(ApiError, match="at least 1"):
        parse(chat(max_completion_tokens=0), ChatBody).sampling()
