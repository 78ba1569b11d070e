"""A KServe request as the body of `/v1/completions` that asks for the same, checked there; pure.

Inputs and parameters have the names that Triton's backends of vLLM and TensorRT-LLM use, or the body's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.errors import ApiError, ErrorCode, invalid
from proxy.fronts.kserve_tensors import Value, read_tensors
from proxy.openai.api import CompletionBody
from proxy.openai.body import parse, printable
from rpc import kserve_pb2

NAMES = {
    "text_input": "prompt",
    "input_ids": "prompt",
    "stop_words": "stop",
    "random_seed": "seed",
    "min_length": "min_tokens",
}
LISTS = ("prompt", "stop", "stop_token_ids")
NOT_HERE = ("model", "echo", "logprobs", "best_of", "stream_options")  # of the body: without a place in the answer
SIZED_BY_ONE = "must be one value, not {}"


@dataclass(frozen=True, slots=True)
class KserveRequest:
    body: CompletionBody
    timeout_s: float | None  # Triton's own parameter; None: the call's deadline alone
    outputs: tuple[str, ...]  # that are wanted; none: all


def read_request(request: kserve_pb2.ModelInferRequest, known_outputs: Sequence[str]) -> KserveRequest:
    """Raises ApiError, naming the input or the parameter."""
    if request.model_version not in ("", "1"):
        text = f"model_version: {printable(request.model_version)!r} is not served here; '1' is"
        raise ApiError(ErrorCode.NOT_FOUND, text, "model_version", "model_not_found")
    outputs = tuple(output.name for output in request.outputs)
    for name in outputs:
        if name not in known_outputs:
            raise invalid("outputs", f"{printable(name)!r} is none of {', '.join(known_outputs)}")
    parameters = {name: _parameter(name, value) for name, value in request.parameters.items()}
    parameters.pop("triton_enable_empty_final_response", None)  # it always comes
    timeout_s = _timeout_s(parameters.pop("timeout", None))
    fields = _fields(read_tensors(request), parameters)
    if "prompt" not in fields:
        raise invalid("text_input", "this input is required", "missing_field")
    body = json.dumps({"model": request.model_name or None, **fields})  # whatever is wrong with it is found there
    return KserveRequest(parse(body.encode(), CompletionBody), timeout_s, outputs)


def _fields(tensors: Mapping[str, list[Value]], parameters: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    given = {name: _from_tensor(name, values) for name, values in tensors.items()}
    for name, value in [*given.items(), *parameters.items()]:
        if name == "sampling_parameters":
            _add_all(fields, _object(value))
        elif name == "exclude_input_in_output":
            if value is not True:
                raise invalid(name, "must be true or left out: text_output never has the prompt")
        else:
            _add(fields, NAMES.get(name, name), value)
    return fields


def _add_all(fields: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in ("prompt", "stream"):
            raise invalid("sampling_parameters", f"{name} is no sampling parameter")
        _add(fields, name, value)


def _add(fields: dict[str, Any], name: str, value: object) -> None:
    if name in NOT_HERE:
        raise invalid(name, "not supported through this protocol; leave it out", "unsupported_parameter")
    if name in fields:
        raise invalid(printable(name), "is there more than once")
    fields[name] = value


def _from_tensor(name: str, values: list[Value]) -> Any:
    read = [_text(name, value) if isinstance(value, bytes) else value for value in values]
    if name == "text_input" and len(read) == 1:
        return read[0]
    if NAMES.get(name, name) in LISTS:
        return read
    if len(read) != 1:
        raise invalid(printable(name), SIZED_BY_ONE.format(len(read)))
    return read[0]


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise invalid(printable(name), "is not UTF-8") from error


def _object(value: object) -> dict[str, Any]:
    try:
        read = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise invalid("sampling_parameters", f"is not JSON: {printable(str(error))}") from error
    if not isinstance(read, dict):
        raise invalid("sampling_parameters", "must be a JSON object, as text")
    return read


def _parameter(name: str, value: kserve_pb2.InferParameter) -> Any:
    kind = value.WhichOneof("parameter_choice")
    if kind is None:
        raise invalid(printable(name), "this parameter has no value")
    return getattr(value, kind)


def _timeout_s(microseconds: object) -> float | None:
    if microseconds is None:
        return None
    if isinstance(microseconds, bool) or not isinstance(microseconds, int) or microseconds < 1:
        raise invalid("timeout", "must be a number of microseconds, at least 1")
    return microseconds / 1e6
