"""Logprobs: finite whatever a worker says, and in the two forms that OpenAI gives them."""

from __future__ import annotations

import json
import math

import pytest

from proxy.model import ServedModel
from proxy.openai.logprobs import chat_logprobs, completion_logprobs
from proxy.request.logprobs import LOWEST, Logprob, TokenLogprobs, read_logprobs
from rpc import worker_pb2
from tests.unit.proxy.conftest import EOS


def told(token_id: int, logprob: float, *top: tuple[int, float], text_offset: int = 0) -> TokenLogprobs:
    return TokenLogprobs(Logprob(token_id, logprob), tuple(Logprob(*each) for each in top), text_offset)


@pytest.mark.parametrize(
    ("sent", "read"),
    [(-1.5, -1.5), (0.0, 0.0), (1e-6, 0.0), (-math.inf, LOWEST), (-1e30, LOWEST), (math.nan, LOWEST), (math.inf, 0.0)],
)
def test_what_a_worker_says_becomes_a_number_that_json_can_say(sent: float, read: float) -> None:
    wire = worker_pb2.TokenLogprobs(logprob=sent, top_ids=[7, 8], top_logprobs=[sent, sent])
    assert read_logprobs(5, wire, 3) == told(5, read, (7, read), (8, read), text_offset=3)


def test_as_many_logprobs_as_ids_or_the_message_is_wrong() -> None:
    with pytest.raises(ValueError, match="zip"):
        read_logprobs(5, worker_pb2.TokenLogprobs(top_ids=[1, 2], top_logprobs=[-1.0]), 0)


def test_a_completion_has_four_lists_and_the_chosen_token_is_always_among_the_top(model: ServedModel) -> None:
    entries = [told(ord("a"), -2.0, (ord("b"), -0.5)), told(ord("b"), -0.5, (ord("b"), -0.5), text_offset=1)]
    assert completion_logprobs(entries, model.tokenizer) == {
        "tokens": ["a", "b"],
        "token_logprobs": [-2.0, -0.5],
        "top_logprobs": [{"b": -0.5, "a": -2.0}, {"b": -0.5}],
        "text_offset": [0, 1],
    }


def test_a_chat_has_an_entry_for_each_token_with_its_exact_bytes(model: ServedModel) -> None:
    first, second = "é".encode()
    entries = [told(first, -0.25, (first, -0.25), (ord("e"), -3.0)), told(second, -0.5)]
    assert chat_logprobs(entries, model.tokenizer) == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -0.25,
                "bytes": [first],
                "top_logprobs": [
                    {"token": "\ufffd", "logprob": -0.25, "bytes": [first]},
                    {"token": "e", "logprob": -3.0, "bytes": [ord("e")]},
                ],
            },
            {"token": "\ufffd", "logprob": -0.5, "bytes": [second], "top_logprobs": []},
        ],
        "refusal": None,
    }


def test_of_tokens_with_the_same_text_a_completion_tells_the_likeliest(model: ServedModel) -> None:
    entry = told(0xC3, -2.0, (0xA9, -0.5), (0xC3, -2.0))
    assert completion_logprobs([entry], model.tokenizer)["top_logprobs"] == [{"\ufffd": -0.5}]


def test_a_special_token_has_a_name_but_adds_no_bytes_and_an_unused_id_has_neither(model: ServedModel) -> None:
    (special, unused) = chat_logprobs([told(EOS, -1.0), told(9999, -1.0)], model.tokenizer)["content"]
    assert (special["token"], special["bytes"]) == ("<|end|>", [])
    assert (unused["token"], unused["bytes"]) == ("", [])


def test_the_joined_bytes_are_the_text_and_all_is_strict_json(model: ServedModel) -> None:
    text = "žluťoučký 🙂 日本"
    content = chat_logprobs([told(byte, LOWEST) for byte in text.encode()], model.tokenizer)["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == text
    json.dumps(content, allow_nan=False).encode()
