"""docs/api.md names every field that is read, and every one that is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.openai.api import ChatBody, CompletionBody
from proxy.openai.unsupported import UNSUPPORTED_FIELDS
from rpc import inference_pb2

PAGE = Path(__file__).parents[3] / "docs" / "api.md"
NOT_FIELDS_OF_OPENAI = {"text", "token_ids", "chat", "request_id", "sampling"}  # of gRPC: its own ways to say the same


@pytest.mark.parametrize(
    "fields",
    [
        set(CompletionBody.model_fields),
        set(ChatBody.model_fields),
        set(UNSUPPORTED_FIELDS),
        {*inference_pb2.Sampling.DESCRIPTOR.fields_by_name, *inference_pb2.GenerateRequest.DESCRIPTOR.fields_by_name}
        - NOT_FIELDS_OF_OPENAI,
    ],
    ids=["completions", "chats", "refused", "gRPC"],
)
def test_every_field_is_documented(fields: set[str]) -> None:
    named = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", PAGE.read_text()))))
    assert fields <= named
