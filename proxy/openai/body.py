"""A JSON body: parsed strictly into one of the models, or refused by the name of the field that is wrong."""

from __future__ import annotations

import re
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from proxy.errors import ApiError, ErrorCode, invalid
from proxy.openai.unsupported import refuse_fields, shortened

SURROGATE = re.compile(r"[\ud800-\udfff]")
REPLACEMENT = "\ufffd"


class Body(BaseModel):
    """Fields that are not read land in `model_extra`, to be refused by name."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False)

    def check(self) -> None:
        """What goes together. Raises ApiError."""


AnyBody = TypeVar("AnyBody", bound=Body)


def parse(body: bytes, kind: type[AnyBody]) -> AnyBody:
    """Raises ApiError, naming the field or the place in the JSON."""
    try:
        parsed = kind.model_validate_json(body)
    except ValidationError as error:
        raise _as_api_error(error) from error
    refuse_fields(parsed.model_extra or {})
    parsed.check()
    return parsed


def printable(text: str) -> str:
    """What a client sent, for a message: shortened, and without halves of characters, which no JSON can hold."""
    return SURROGATE.sub(REPLACEMENT, shortened(text))


def _as_api_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        text = f"the body is not valid JSON: {message.removeprefix('Invalid JSON: ')}"
        return ApiError(ErrorCode.INVALID_ARGUMENT, text, reason="invalid_json")
    param = ".".join(printable(str(part)) for part in first["loc"])
    if not param:
        return ApiError(ErrorCode.INVALID_ARGUMENT, "the body must be a JSON object", reason="invalid_json")
    if first["type"] == "missing":
        return invalid(param, "this field is required", "missing_field")
    if first["type"] == "extra_forbidden":
        return invalid(param, "unknown field", "unknown_field")
    return invalid(param, message[0].lower() + message[1:], "invalid_value")
