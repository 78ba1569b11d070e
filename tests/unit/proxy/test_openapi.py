"""The description of the HTTP port is true: its paths are the app's, its examples are answered, its answers match."""

from __future__ import annotations

import re
from typing import Any

import httpx
import jsonschema
import pytest

from proxy.fronts.http_gate import OPEN
from proxy.fronts.openapi import OPERATIONS, document
from proxy.openai.api import ChatBody, CompletionBody
from proxy.openai.body import Body
from proxy.openai.body_schema import BODIES
from proxy.openai.token_bodies import DetokenizeBody, TokenizeBody
from proxy.openai.unsupported import UNSUPPORTED_FIELDS
from tests.unit.proxy.conftest import Cluster, events

ODD_BUT_VALID = (
    {"prompt": [104, 105], "stop": "x", "seed": -1, "logit_bias": {"5": -100}, "store": False, "user": None},
    {"prompt": ["a", "b"], "n": 2, "best_of": 2, "logprobs": 3},
)


def validator(name: str) -> Any:
    """Of a named schema, with the others in reach."""
    described = document()
    return jsonschema.Draft202012Validator({**described, "$ref": f"#/components/schemas/{name}"})


def test_every_path_is_described_and_no_other(served: Cluster) -> None:
    assert served.server is not None
    app: Any = served.server._http.config.app
    routes = {
        (method.lower(), re.sub(r":path", "", route.path))
        for route in app.routes
        if getattr(route, "include_in_schema", False)
        for method in route.methods - {"HEAD"}
    }
    assert routes == set(OPERATIONS)


def test_what_needs_no_key_says_so_and_all_else_names_the_bearer() -> None:
    described = document()
    assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert {"key": []} in described["security"]
    open_paths = {path for path, methods in described["paths"].items() if methods.get("get", {}).get("security") == []}
    assert open_paths == OPEN


@pytest.mark.parametrize("name", document()["components"]["schemas"])
def test_every_schema_is_one(name: str) -> None:
    schema = document()["components"]["schemas"][name]
    jsonschema.Draft202012Validator.check_schema(schema)
    known = document()["components"]["schemas"]
    for place in re.findall(r"#/components/schemas/(\w+)", str(schema)):
        assert place in known


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("CompletionRequest", CompletionBody),
        ("ChatCompletionRequest", ChatBody),
        ("TokenizeRequest", TokenizeBody),
        ("DetokenizeRequest", DetokenizeBody),
    ],
)
def test_every_field_is_described_and_what_is_refused_is_seen_to_be(name: str, kind: type[Body]) -> None:
    assert BODIES[name] is kind
    properties = document()["components"]["schemas"][name]["properties"]
    assert set(kind.model_fields) <= set(properties)
    assert all(schema["description"] for schema in properties.values())
    if "Completion" in name:
        assert set(properties) == set(kind.model_fields) | set(UNSUPPORTED_FIELDS)
        assert properties["prediction"]["enum"] == [None]
        assert properties["store"]["enum"] == [None, False]


async def test_the_examples_are_answered_as_described(served: Cluster, http: httpx.AsyncClient) -> None:
    served.decode.answer(b"sings")
    for (method, path), operation in OPERATIONS.items():
        response = await http.request(method, path.format(name="bytes"), json=operation.example)
        assert response.status_code == 200, (path, response.text)
        if operation.answer is not None:
            validator(operation.answer).validate(response.json())
        if operation.body is not None:
            validator(operation.body).validate(operation.example)


@pytest.mark.parametrize("body", ODD_BUT_VALID)
async def test_odd_but_valid_bodies_are_valid_and_answered(
    served: Cluster, http: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    served.decode.answer(b"sings")
    validator("CompletionRequest").validate(body)
    response = await http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    validator("Completion").validate(response.json())


@pytest.mark.parametrize(
    "wrong", [{"prompt": 7}, {"prompt": "a", "temperature": 3}, {"prompt": "a", "suffix": "b"}, {"prompt": "a", "x": 1}]
)
async def test_what_the_description_does_not_allow_is_refused(http: httpx.AsyncClient, wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validator("CompletionRequest").validate(wrong)
    response = await http.post("/v1/completions", json=wrong)
    assert response.status_code == 400
    validator("Error").validate(response.json())


async def test_chunks_are_as_described(served: Cluster, http: httpx.AsyncClient) -> None:
    served.decode.answer(b"sings")
    for (_, path), operation in OPERATIONS.items():
        if operation.chunk is not None:
            body = {**(operation.example or {}), "stream": True, "stream_options": {"include_usage": True}}
            async with http.stream("POST", path, json=body) as response:
                *chunks, done = await events(response)
            assert done == "[DONE]"
            for chunk in chunks:
                validator(operation.chunk).validate(chunk)


async def test_the_page_needs_no_network(http: httpx.AsyncClient) -> None:
    page = (await http.get("/docs")).text
    places = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert places
    for place in places:
        assert place.startswith("/docs/static/")
        assert (await http.get(place)).status_code == 200
    described = (await http.get("/openapi.json")).json()
    assert described == document()
