"""JSON schemas of the bodies that clients send, made from the models that parse them. Pure.

What is refused is there too, so that who reads the description knows: as a field with nothing but harmless values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.openai.api import ChatBody, CompletionBody
from proxy.openai.body import Body
from proxy.openai.field_notes import FIELD_NOTES
from proxy.openai.messages import Message
from proxy.openai.token_bodies import DetokenizeBody, TokenizeBody
from proxy.openai.unsupported import UNSUPPORTED_FIELDS

Schema = dict[str, Any]
BODIES: dict[str, type[Body]] = {
    "CompletionRequest": CompletionBody,
    "ChatCompletionRequest": ChatBody,
    "TokenizeRequest": TokenizeBody,
    "DetokenizeRequest": DetokenizeBody,
}
REFUSED = "Not supported: refused with 400 unless it is one of these values, which ask for nothing."
PLACE = "#/components/schemas/"


def body_schemas() -> dict[str, Schema]:
    """By name, those that they refer to included."""
    schemas: dict[str, Schema] = {}
    for name, kind in BODIES.items():
        schema = kind.model_json_schema(ref_template=PLACE + "{model}")
        schemas |= schema.pop("$defs", {})
        schemas[name] = _described(schema, name, kind)
    schemas[Message.__name__]["additionalProperties"] = False
    schemas[Message.__name__].pop("description")
    schemas[Message.__name__]["properties"]["content"] = CONTENT
    return {name: _without_titles(schema) for name, schema in schemas.items()}


def _described(schema: Schema, name: str, kind: type[Body]) -> Schema:
    properties = {field: _noted(field, value) for field, value in schema["properties"].items()}
    for field, harmless in UNSUPPORTED_FIELDS.items():
        if field not in properties and kind in (ChatBody, CompletionBody):
            properties[field] = {"enum": [None, *harmless], "deprecated": True, "description": REFUSED}
    return {**schema, "title": name, "properties": properties, "additionalProperties": False} | _rules(kind)


def _rules(kind: type[Body]) -> Schema:
    if kind is TokenizeBody:
        return {"oneOf": [{"required": ["prompt"]}, {"required": ["messages"]}]}
    return {"description": kind.__doc__} if kind.__doc__ else {}


def _noted(field: str, schema: Schema) -> Schema:
    """Limits belong to the branch that is not null."""
    note = dict(FIELD_NOTES.get(field, {}))
    described = {"description": note.pop("description", "")}
    if "anyOf" in note or "type" in note:
        return {**note, **described}
    branches = [{**each, **note} if each.get("type") != "null" else each for each in schema.get("anyOf", ())]
    if branches and field != "prompt":
        return {"anyOf": branches, **described}
    return {**schema, **note, **described}


def _without_titles(value: Any) -> Any:
    """Pydantic's, which only repeat the names, and its defaults, which are all null."""
    if isinstance(value, Mapping):
        return {
            key: _without_titles(each)
            for key, each in value.items()
            if not (key == "title" and isinstance(each, str)) and not (key == "default" and each is None)
        }
    return [_without_titles(each) for each in value] if isinstance(value, list) else value


CONTENT: Schema = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "text"],
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            },
        },
        {"type": "null"},
    ],
    "description": "A text, or text parts, which are lines.",
}
