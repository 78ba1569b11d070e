"""What a client wants the text of an answer to be: JSON of a schema, a match of a regex, or a sentence of a grammar.

Pure: reads the fields of a request and refuses what contradicts; whether the grammar can be used is `GrammarCompiler`'s
to say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from proxy.errors import invalid
from proxy.openai.unsupported import refuse_others

MAX_BYTES = 64 << 10  # of a schema, a regex or a grammar
ANY_OBJECT = '{"type":"object"}'
# One blank at most, and only where people write it: a small model could go on with blanks for ever.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
STRUCTURED_OUTPUT_FIELDS = (
    *("response_format", "regex", "grammar"),
    *("structured_outputs", "guided_json", "guided_regex", "guided_grammar"),
)
RESPONSE_FORMATS = ("text", "json_object", "json_schema")
ALIASES = {"guided_json": "json", "guided_regex": "regex", "guided_grammar": "grammar"}  # vLLM's older names


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"  # lark in llguidance's dialect, or llama.cpp's GBNF


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    kind: GrammarKind
    text: str
    field: str  # the client's, for messages


def from_fields(fields: Mapping[str, object]) -> StructuredOutput | None:
    """Of the fields that ask for structured output, the one that is set. Raises ApiError when two are."""
    found = [read for name, value in fields.items() if value is not None for read in _read_field(name, value)]
    if len(found) > 1:
        raise invalid(found[1].field, f"only one kind of structured output at once, and {found[0].field} is set too")
    return found[0] if found else None


def from_kind(kind: str, value: object, field: str) -> StructuredOutput | None:
    """`kind`: json_object, json_schema, regex or grammar. None for an empty value. Raises ApiError."""
    found = _named("json" if kind == "json_schema" else kind, value, field)
    return found[0] if found else None


def check_size(output: StructuredOutput) -> StructuredOutput:
    size = len(output.text.encode())
    if size > MAX_BYTES:
        raise invalid(output.field, f"{size} bytes are too many: at most {MAX_BYTES}")
    return output


def _read_field(name: str, value: object) -> list[StructuredOutput]:
    if name == "response_format":
        return _response_format(value)
    if name == "structured_outputs":
        return _structured_outputs(value)
    return _named(ALIASES.get(name, name), value, name)


def _response_format(value: object) -> list[StructuredOutput]:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in RESPONSE_FORMATS:
        raise invalid("response_format", f"must be an object with type {', '.join(RESPONSE_FORMATS)}")
    refuse_others("response_format", value, ("type", "json_schema") if kind == "json_schema" else ("type",))
    if kind == "text":
        return []
    if kind == "json_object":
        return [StructuredOutput(GrammarKind.JSON_SCHEMA, ANY_OBJECT, "response_format")]
    named = value.get("json_schema")
    if not isinstance(named, dict):
        raise invalid("response_format.json_schema", 'must be an object: {"name": "…", "schema": {…}}')
    refuse_others("response_format.json_schema", named, ("name", "schema", "strict", "description"))
    return [_json_schema(named.get("schema"), "response_format.json_schema.schema")]


def _structured_outputs(value: object) -> list[StructuredOutput]:
    """vLLM's own form: an object with one of `json`, `regex`, `choice`, `grammar`, `json_object`."""
    if not isinstance(value, dict):
        raise invalid("structured_outputs", "must be an object")
    refuse_others("structured_outputs", value, tuple(READERS))
    given = {name: part for name, part in value.items() if part is not None}
    return [read for name, part in given.items() for read in _named(name, part, f"structured_outputs.{name}")]


def _named(name: str, value: object, field: str) -> list[StructuredOutput]:
    if value in ("", False):
        return []
    return [READERS[name](value, field)]


def _json_schema(value: object, field: str) -> StructuredOutput:
    """A JSON schema as an object, or as the text of one."""
    try:
        schema = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()  # an escape may stand for half a character
    except (ValueError, RecursionError) as error:
        raise invalid(field, f"is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise invalid(field, "must be a JSON schema, as an object")
    if "x-guidance" in schema:
        raise invalid(f"{field}.x-guidance", "not supported by this server; leave it out")
    return check_size(StructuredOutput(GrammarKind.JSON_SCHEMA, text, field))


def _json_object(value: object, field: str) -> StructuredOutput:
    if value is not True:
        raise invalid(field, "must be true or false")
    return StructuredOutput(GrammarKind.JSON_SCHEMA, ANY_OBJECT, field)


def _regex(value: object, field: str) -> StructuredOutput:
    return check_size(StructuredOutput(GrammarKind.REGEX, _text(value, field), field))


def _grammar(value: object, field: str) -> StructuredOutput:
    return check_size(StructuredOutput(GrammarKind.GRAMMAR, _text(value, field), field))


def _choice(value: object, field: str) -> StructuredOutput:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise invalid(field, "must be a list of texts, none of them empty")
    rule = "start: " + " | ".join(json.dumps(item, ensure_ascii=False) for item in value)
    return check_size(StructuredOutput(GrammarKind.GRAMMAR, rule, field))


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise invalid(field, "must be a string")
    return value


READERS: dict[str, Callable[[object, str], StructuredOutput]] = {
    "json": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "grammar": _grammar,
    "choice": _choice,
}
