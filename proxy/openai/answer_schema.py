"""JSON schemas of what clients get: whole answers, chunks of streams, models, token ids and errors. Pure."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 0}
ANY_TEXT = {"type": ["string", "null"]}


def of(**properties: Schema) -> Schema:
    """An object that has exactly these."""
    return {"type": "object", "required": list(properties), "properties": properties, "additionalProperties": False}


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


USAGE = of(
    prompt_tokens=WHOLE,
    completion_tokens=WHOLE,
    total_tokens=WHOLE,
    prompt_tokens_details=of(cached_tokens=WHOLE),
)
TOLD = {"token": TEXT, "logprob": NUMBER, "bytes": list_of(WHOLE)}
CHAT_LOGPROBS = of(content=list_of(of(**TOLD, top_logprobs=list_of(of(**TOLD)))), refusal=ANY_TEXT)
COMPLETION_LOGPROBS = of(
    tokens=list_of(TEXT),
    token_logprobs=list_of(NUMBER),
    top_logprobs=list_of({"type": "object", "additionalProperties": NUMBER}),
    text_offset=list_of(WHOLE),
)
TOOL_CALL = of(id=TEXT, type={"const": "function"}, function=of(name=TEXT, arguments=TEXT))
MESSAGE = of(role={"const": "assistant"}, content=ANY_TEXT, refusal=ANY_TEXT)
MESSAGE["properties"]["tool_calls"] = list_of(TOOL_CALL)
DELTA: Schema = {"type": "object", "properties": {"role": TEXT, "content": ANY_TEXT, "tool_calls": list_of({})}}
REASON = {"enum": ["stop", "length", "tool_calls"]}


def _answer(kind: str, choice: Schema, usage: Schema) -> Schema:
    return of(
        id=TEXT,
        object={"const": kind},
        created=WHOLE,
        model=TEXT,
        system_fingerprint=ANY_TEXT,
        choices=list_of(choice),
        usage=usage,
    )


def _chunk(kind: str, choice: Schema) -> Schema:
    chunk = _answer(kind, choice, {**nullable(reference("Usage")), "description": "With include_usage: in the last."})
    chunk["required"].remove("usage")
    return chunk


def answer_schemas() -> dict[str, Schema]:
    """By name."""
    chat: Schema = {"index": WHOLE, "logprobs": nullable(CHAT_LOGPROBS)}
    text: Schema = {"index": WHOLE, "text": TEXT, "logprobs": nullable(COMPLETION_LOGPROBS)}
    usage = reference("Usage")
    return {
        "Usage": USAGE,
        "Completion": _answer("text_completion", of(**text, finish_reason=REASON), usage),
        "CompletionChunk": _chunk("text_completion", of(**text, finish_reason=nullable(REASON))),
        "ChatCompletion": _answer("chat.completion", of(**chat, message=MESSAGE, finish_reason=REASON), usage),
        "ChatCompletionChunk": _chunk("chat.completion.chunk", of(**chat, delta=DELTA, finish_reason=nullable(REASON))),
        "Model": of(id=TEXT, object={"const": "model"}, created=WHOLE, owned_by=TEXT, max_model_len=WHOLE),
        "ModelList": of(object={"const": "list"}, data=list_of(reference("Model"))),
        "Tokens": of(count=WHOLE, max_model_len=WHOLE, tokens=list_of(WHOLE), token_strs=nullable(list_of(TEXT))),
        "Text": of(prompt=TEXT),
        "Status": of(status=TEXT),
        "Targets": list_of(of(targets=list_of(TEXT), labels={"type": "object", "additionalProperties": TEXT})),
        "Error": of(error=of(message=TEXT, type=TEXT, param=ANY_TEXT, code=ANY_TEXT)),
    }
