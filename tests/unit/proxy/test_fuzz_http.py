"""schemathesis against the description of the HTTP port: what it allows and what it does not is answered as it says.

Never a fault, and the next request is right. Seeded: the same requests each time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy, one_of
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from proxy.fronts.openapi import OPERATIONS, document
from tests.unit.proxy.conftest import MakeCluster, http_client

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
NOT_BY_SCHEMATHESIS = ("content-length", "host", "connection", "transfer-encoding", "expect")  # the connection's own
PATIENCE_S = 60.0
seeded = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def cases(mode: GenerationMode) -> SearchStrategy[Any]:
    described = schemathesis.openapi.from_dict(document())
    return one_of(
        *(
            described[path][method.upper()].as_strategy(generation_mode=mode)
            for (method, path), operation in OPERATIONS.items()
            if mode is GenerationMode.POSITIVE or operation.body is not None
        )
    )


@pytest.fixture
async def http(make_cluster: MakeCluster) -> AsyncIterator[httpx.AsyncClient]:
    """Making up requests holds up the loop that the scripted workers live in: they may be silent for long."""
    served = await make_cluster(fronts=True, silent_s=600.0)
    served.decode.answer(b"sings", size=1)
    async with http_client(f"http://{served.addresses.http}") as client:
        yield client


async def check(http: httpx.AsyncClient, case: Any) -> None:
    sent = case.as_transport_kwargs(base_url=str(http.base_url))
    headers = {name: value for name, value in sent.pop("headers").items() if name.lower() not in NOT_BY_SCHEMATHESIS}
    if "data" in sent:
        sent["content"] = sent.pop("data")
    sent.pop("cookies")
    response = await http.request(headers=headers, timeout=PATIENCE_S, **sent)
    case.validate_response(response, checks=CHECKS)
    canary = await http.post("/v1/completions", json={"prompt": "the canary"}, timeout=PATIENCE_S)
    assert canary.json()["choices"][0]["text"] == "sings"


@seeded
@given(case=cases(GenerationMode.POSITIVE))
async def test_what_the_description_allows_is_answered_as_it_says(http: httpx.AsyncClient, case: Any) -> None:
    await check(http, case)


@seeded
@given(case=cases(GenerationMode.NEGATIVE))
async def test_what_it_does_not_allow_is_refused_without_a_fault(http: httpx.AsyncClient, case: Any) -> None:
    await check(http, case)
