"""The description of the HTTP port that `/docs` shows and `/openapi.json` holds: every path, body, header and error.

Made from what parses the bodies and from the one table of statuses; a test holds the paths to the app's own routes.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import Any

from proxy.access.caller import TENANT
from proxy.errors import STATUS
from proxy.openai.answer_schema import answer_schemas, reference
from proxy.openai.body_schema import body_schemas
from proxy.request.kv_mode import KvMode
from proxy.request.priority import LABELS

Schema = dict[str, Any]
MEANINGS = {
    400: "A field or a value is wrong; `param` names it. Or the prompt is too long.",
    401: "No API key, or a wrong one.",
    403: "The API key does not allow this.",
    404: "Another model, or no such path.",
    408: "The body took too long.",
    409: "A request with this id runs already.",
    413: "The body is too large.",
    429: "The server is full, or the tenant has had its share; `Retry-After` says when to come again.",
    499: "The request was aborted, or its answer was read too slowly.",
    500: "A fault in the server; its log has the request's id.",
    502: "Workers died under the request, and all that may be tried was tried.",
    503: "No worker is ready, or the server shuts down.",
    504: "It took longer than its deadline.",
}
BY_KEY = (401, 403)
ALL_ERRORS = tuple(sorted({status.http for status in STATUS.values()}))
BODY_ERRORS = (400, *BY_KEY, 404, 408, 413, 500)
TEXT_HEADER = {"type": "string", "pattern": f"^{TENANT.pattern}$"}
MILLISECONDS = {"type": "string", "pattern": "^[1-9][0-9]{0,8}$"}
REQUEST_HEADERS: dict[str, tuple[Schema, str]] = {
    "x-request-id": (TEXT_HEADER, "A label for logs, traces and Abort."),
    "x-priority": ({"enum": list(LABELS)}, "batch gives way to all interactive requests."),
    "x-tenant": (TEXT_HEADER, "Tenants share no cached prefix. With API keys only those that may set it."),
    "x-slo-ttft-ms": (MILLISECONDS, "When the first token is hoped for; 429 at once when that cannot be."),
    "x-slo-tpot-ms": (MILLISECONDS, "How long each token after it may take."),
    "x-kv-mode": ({"enum": [mode.value for mode in KvMode]}, "How the prompt's KV gets to the decode worker."),
    "x-kv-write-back": ({"enum": ["true", "false"]}, "The KV goes to the pool at the end."),
}
ANSWER_HEADERS: dict[str, tuple[Schema, str]] = {
    "x-request-id": ({"type": "string"}, "The request's, or one that the server made."),
    "x-path": ({"enum": [mode.value for mode in KvMode]}, "Where the prompt's KV came from."),
    "x-prefill-worker": ({"type": "string"}, "Absent where the decode worker computed the prompt."),
    "x-decode-worker": ({"type": "string"}, "Which worker speaks."),
    "x-cached-tokens": ({"type": "string"}, "Prompt tokens that no worker had to compute."),
}


@dataclass(frozen=True, slots=True)
class Operation:
    summary: str
    answer: str | None  # its schema; None: plain text
    body: str | None = None  # likewise
    chunk: str | None = None  # of what is streamed, likewise
    example: Schema | None = None
    errors: tuple[int, ...] = BY_KEY


PROMPT = {"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 48}
OPERATIONS: dict[tuple[str, str], Operation] = {
    ("post", "/v1/completions"): Operation(
        "Continues a text", "Completion", "CompletionRequest", "CompletionChunk", PROMPT, ALL_ERRORS
    ),
    ("post", "/v1/chat/completions"): Operation(
        "Answers a chat", "ChatCompletion", "ChatCompletionRequest", "ChatCompletionChunk", CHAT, ALL_ERRORS
    ),
    ("get", "/v1/models"): Operation("The model that is served, as a list", "ModelList"),
    ("get", "/v1/models/{name}"): Operation("The model that is served", "Model", errors=(*BY_KEY, 404)),
    ("post", "/tokenize"): Operation(
        "A text or a chat as token ids", "Tokens", "TokenizeRequest", None, {"prompt": "Hello"}, BODY_ERRORS
    ),
    ("post", "/detokenize"): Operation(
        "Token ids as a text", "Text", "DetokenizeRequest", None, {"tokens": [1, 2]}, BODY_ERRORS
    ),
    ("get", "/health"): Operation("Answers for as long as the process runs", "Status", errors=()),
    ("get", "/ready"): Operation("Whether a generation would work now", "Status", errors=(503,)),
    ("get", "/metrics"): Operation("For Prometheus", None),
    ("get", "/prometheus/targets"): Operation("What Prometheus is to scrape: for http_sd_configs", "Targets"),
}


def document() -> Schema:
    """The whole description, OpenAPI 3.1."""
    paths: dict[str, Schema] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method] = _described(path, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "pdserve", "version": importlib.metadata.version("pdserve")},
        "paths": paths,
        "components": {
            "schemas": {**body_schemas(), **answer_schemas()},
            "responses": {str(status): _error(status) for status in ALL_ERRORS},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "Where keys are asked for"}},
        },
        "security": [{}, {"key": []}],
    }


def _described(path: str, operation: Operation) -> Schema:
    generates = operation.chunk is not None
    headers = REQUEST_HEADERS if generates else {}
    parameters = [_parameter(name, "header", schema, text) for name, (schema, text) in headers.items()]
    if "{name}" in path:
        parameters.append(_parameter("name", "path", {"type": "string", "minLength": 1}, "The served name."))
    described: Schema = {"summary": operation.summary, "parameters": parameters, "responses": _responses(operation)}
    if not set(BY_KEY) & set(operation.errors):
        described["security"] = []
    if operation.body is not None:
        content = {"schema": reference(operation.body), "example": operation.example}
        described["requestBody"] = {"required": True, "content": {"application/json": content}}
    return described


def _responses(operation: Operation) -> Schema:
    content: Schema = {"text/plain": {"schema": {"type": "string"}}}
    if operation.answer is not None:
        content = {"application/json": {"schema": reference(operation.answer)}}
    if operation.chunk is not None:
        events = f"`data: ` before each, a {operation.chunk} in JSON or an Error; `data: [DONE]` is the last"
        content["text/event-stream"] = {"schema": {"type": "string", "description": events}}
    told = ANSWER_HEADERS if operation.chunk is not None else {}
    headers = {name: {"schema": schema, "description": text} for name, (schema, text) in told.items()}
    answered = {"description": "The answer", "content": content, "headers": headers}
    errors = {str(status): {"$ref": f"#/components/responses/{status}"} for status in operation.errors}
    return {"200": answered, **errors}


def _parameter(name: str, place: str, schema: Schema, text: str) -> Schema:
    return {"name": name, "in": place, "required": place == "path", "schema": schema, "description": text}


def _error(http: int) -> Schema:
    code, status = next((code, status) for code, status in STATUS.items() if status.http == http)
    example = {"error": {"message": MEANINGS[http], "type": status.type, "param": None, "code": code.value}}
    content = {"application/json": {"schema": reference("Error"), "example": example}}
    return {"description": MEANINGS[http], "content": content}
