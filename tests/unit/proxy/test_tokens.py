"""Text to token ids and back, on both ports: what a generation would make of it, and nothing is generated."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
import pytest

from rpc import inference_pb2, inference_pb2_grpc
from tests.unit.proxy.conftest import MAX_MODEL_LEN, Cluster
from tests.unit.proxy.fake_worker import PATIENCE_S

CHAT = [{"role": "user", "content": "hi"}]
RENDERED = "user: hi\nassistant: "


async def call(served: Cluster, method: str, request: Any) -> Any:
    async with grpc.aio.insecure_channel(served.addresses.grpc) as channel:
        return await getattr(inference_pb2_grpc.InferenceStub(channel), method)(request, timeout=PATIENCE_S)


async def test_a_text_is_tokenised_and_comes_back(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/tokenize", json={"prompt": "né", "return_token_strs": True})).json()
    assert answer == {
        "count": 3,
        "max_model_len": MAX_MODEL_LEN,
        "tokens": list("né".encode()),
        "token_strs": ["n", "\ufffd", "\ufffd"],
    }
    back = await http.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": "né"}


async def test_a_chat_is_tokenised_as_it_would_be_answered(served: Cluster, http: httpx.AsyncClient) -> None:
    answer = (await http.post("/tokenize", json={"messages": CHAT})).json()
    assert bytes(answer["tokens"]).decode() == RENDERED
    told = await call(
        served, "Tokenize", inference_pb2.TokenizeRequest(chat={"messages": [{"role": "user", "content": "hi"}]})
    )
    assert bytes(told.ids).decode() == RENDERED
    assert b"".join(told.tokens).decode() == RENDERED


async def test_special_tokens_have_names_and_half_a_character_is_marked(http: httpx.AsyncClient) -> None:
    back = await http.post("/detokenize", json={"tokens": [97, 256, 0xC3]})
    assert back.json() == {"prompt": "a<|end|>\ufffd"}


async def test_a_text_longer_than_the_context_is_counted(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/tokenize", json={"prompt": "x" * 50_000})).json()
    assert answer["count"] == 50_000
    back = await http.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": "x" * 50_000}


async def test_nothing_is_nothing(served: Cluster, http: httpx.AsyncClient) -> None:
    assert (await http.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []
    assert (await http.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}
    assert list((await call(served, "Tokenize", inference_pb2.TokenizeRequest(text=""))).ids) == []
    assert (await call(served, "Detokenize", inference_pb2.DetokenizeRequest())).text == ""


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": CHAT}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"messages": CHAT, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "max_tokens": 3}, "max_tokens"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [257]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens.0"),
    ],
)
async def test_a_bad_body_is_refused_by_name(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    response = await http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_another_model_is_not_found_on_either_port(served: Cluster, http: httpx.AsyncClient) -> None:
    assert (await http.post("/tokenize", json={"model": "other", "prompt": "a"})).status_code == 404
    assert (await http.post("/detokenize", json={"model": "other", "tokens": [1]})).status_code == 404
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(served, "Detokenize", inference_pb2.DetokenizeRequest(model="other", ids=[1]))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("method", "request_", "words"),
    [
        ("Tokenize", inference_pb2.TokenizeRequest(), "one of text and chat"),
        ("Tokenize", inference_pb2.TokenizeRequest(chat={}, add_special_tokens=True), "add_special_tokens"),
        ("Detokenize", inference_pb2.DetokenizeRequest(ids=[2**32 - 1]), "4294967295"),
    ],
)
async def test_a_bad_call_is_refused(served: Cluster, method: str, request_: Any, words: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(served, method, request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in (refused.value.details() or "")
