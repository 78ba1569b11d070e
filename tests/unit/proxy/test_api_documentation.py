"""docs/api.md names every field that is read, every one that is refused, and every path, method, header and status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.fronts.kserve_answer import INPUTS, OUTPUTS
from proxy.fronts.openapi import ANSWER_HEADERS, MEANINGS, OPERATIONS, REQUEST_HEADERS
from proxy.openai.api import ChatBody, CompletionBody
from proxy.openai.unsupported import UNSUPPORTED_FIELDS
from rpc import control_pb2, inference_pb2

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


@pytest.mark.parametrize(
    "names",
    [
        {path for _, path in OPERATIONS},
        {method.name for method in inference_pb2.DESCRIPTOR.services_by_name["Inference"].methods},
        {method.name for method in control_pb2.DESCRIPTOR.services_by_name["Control"].methods},
        {*INPUTS, *OUTPUTS},
        {*REQUEST_HEADERS, *ANSWER_HEADERS},
    ],
    ids=["paths", "Inference", "Control", "tensors", "headers"],
)
def test_every_endpoint_is_documented(names: set[str]) -> None:
    quoted = " ".join(re.findall(r"`([^`]+)`", PAGE.read_text()))
    assert {name for name in names if name not in quoted} == set()


def test_every_status_is_documented() -> None:
    rows = " ".join(re.findall(r"^\| ([0-9, ]+) \|", PAGE.read_text(), re.MULTILINE))
    assert {str(status) for status in MEANINGS} <= set(re.findall(r"[0-9]+", rows))
