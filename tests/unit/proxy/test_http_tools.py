"""Calls of functions over HTTP, whole and streamed, as the `openai` client sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.model import ServedModel
from tests.unit.proxy.conftest import Cluster, events, write_byte_model

HI: list[Any] = [{"role": "user", "content": "hi"}]
ADD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
LONGER = {"max_position_embeddings": 4096, "vocab_size": 257}  # functions take many bytes
CALL = b'<tool_call>\n{"name": "add", "arguments": {"a": 12}}\n</tool_call>'


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_byte_model(tmp_path_factory.mktemp("model"))
    (folder / "config.json").write_text(json.dumps(LONGER))
    return folder


async def test_the_openai_client_gets_calls(served: Cluster, client: Any) -> None:
    served.decode.answer(b"Let me see.\n" + CALL + b"\n" + CALL + b"!", finish="stop")  # the last one is the stop token
    answer = await client.chat.completions.create(model="bytes", messages=HI, tools=[ADD])
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Let me see.", "tool_calls")
    first, second = choice.message.tool_calls
    assert first.type == "function"
    assert (first.function.name, json.loads(first.function.arguments)) == ("add", {"a": 12})
    assert first.id.startswith("call_")
    assert first.id != second.id
    prompt = bytes((await served.prefill.next_start()).request.prompt_ids).decode()
    assert json.dumps(ADD) in prompt


async def test_the_openai_client_gets_calls_in_a_stream(served: Cluster, client: Any) -> None:
    served.decode.answer(CALL + b"\n" + CALL + b"!", finish="stop", size=3)
    stream = await client.chat.completions.create(
        model="bytes",
        messages=HI,
        tools=[ADD],
        tool_choice="required",
        stream=True,
    )
    choices = [chunk.choices[0] async for chunk in stream]
    deltas = [call for choice in choices for call in choice.delta.tool_calls or ()]
    names = [(call.index, call.function.name) for call in deltas if call.function and call.function.name]
    assert names == [(0, "add"), (1, "add")]
    for index in (0, 1):
        own = [call for call in deltas if call.index == index]
        assert own[0].id is not None
        assert all(call.id is None for call in own[1:])
        pieces = [call.function.arguments or "" for call in own if call.function]
        assert (pieces[0], "".join(pieces)) == ("", '{"a": 12}')
        assert len(pieces) > 3
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == ""
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["tool_calls"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_that_is_cut_ends_with_length(served: Cluster, http: httpx.AsyncClient, streams: bool) -> None:
    served.decode.answer(CALL[:-15])
    body = {"messages": HI, "tools": [ADD], "tool_choice": "required", "stream": streams}
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if not streams:
            choice = json.loads(await response.aread())["choices"][0]
            (call,) = choice["message"]["tool_calls"]
            told = (choice["message"]["content"], call["function"]["arguments"], choice["finish_reason"])
        else:
            *chunks, _ = await events(response)
            choices = [chunk["choices"][0] for chunk in chunks]
            calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
            content = "".join(choice["delta"].get("content") or "" for choice in choices) or None
            told = (content, "".join(c["function"]["arguments"] for c in calls), choices[-1]["finish_reason"])
    assert told == (None, '{"a": 12', "length")


async def test_text_without_a_call_is_an_ordinary_answer(served: Cluster, client: Any) -> None:
    served.decode.answer(b"no <tool_call> here.!", finish="stop")
    whole = await client.chat.completions.create(model="bytes", messages=HI, tools=[ADD])
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("no <tool_call> here.", "stop")
    assert whole.choices[0].message.tool_calls is None
    assert (await served.prefill.next_start()).request.sampling.grammar == ""
    stream = await client.chat.completions.create(model="bytes", messages=HI, tools=[ADD], stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "no <tool_call> here."


async def test_what_must_be_called_is_in_the_grammar(served: Cluster, client: Any) -> None:
    served.decode.answer(CALL)
    named: Any = {"type": "function", "function": {"name": "add"}}
    for choice in ("required", named):
        await client.chat.completions.create(model="bytes", messages=HI, tools=[ADD], tool_choice=choice)
        grammar = (await served.prefill.next_start()).request.sampling.grammar
        assert '"{\\"name\\": \\"add\\", \\"arguments\\": "' in grammar


async def test_functions_are_not_told_where_none_may_be_called(served: Cluster, client: Any) -> None:
    served.decode.answer(CALL)
    answer = await client.chat.completions.create(model="bytes", messages=HI, tools=[ADD], tool_choice="none")
    assert answer.choices[0].message.content == CALL.decode()
    prompt = (await served.prefill.next_start()).request.prompt_ids
    assert bytes(prompt) == b"user: hi\nassistant: "


async def test_calls_and_their_results_go_back_to_the_model(served: Cluster, client: Any) -> None:
    served.decode.answer(CALL + b"!", finish="stop")
    first = await client.chat.completions.create(model="bytes", messages=HI, tools=[ADD])
    message = first.choices[0].message
    assert message.tool_calls is not None
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": [{"type": "text", "text": "24"}]}
    await client.chat.completions.create(model="bytes", messages=[*HI, message, result], tools=[ADD])
    await served.prefill.next_start()
    prompt = bytes((await served.prefill.next_start()).request.prompt_ids).decode()
    assert prompt.endswith(
        f"user: hi\nassistant: {CALL.decode()}\nuser: <tool_response>\n24\n</tool_response>\nassistant: "
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [ADD, ADD]}, "tools.1.function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [ADD], "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [ADD], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
    ],
)
async def test_what_cannot_be_called_is_refused_by_name(
    http: httpx.AsyncClient, fields: dict[str, object], param: str
) -> None:
    response = await http.post("/v1/chat/completions", json={"messages": HI, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_the_format_may_be_named_by_the_operator(model_folder: Path) -> None:
    assert ServedModel.load(model_folder, "bytes").tool_call_format is not None
    named = ServedModel.load(model_folder, "bytes", "llama").tool_call_format
    assert named is not None
    assert named.name == "llama"
