"""Tensors of the KServe protocol as lists of Python values, and back. Pure.

A tensor's values are in `raw_input_contents` (little endian; a text has its length before it, in four bytes) or typed,
in `contents`; never in both.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import TypeAlias

from proxy.errors import invalid
from proxy.openai.body import printable
from rpc import kserve_pb2

Value: TypeAlias = bool | int | float | bytes
FORMATS = {  # struct's letter of each datatype of fixed size
    "BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
LENGTH = struct.Struct("<I")


def read_tensors(request: kserve_pb2.ModelInferRequest) -> dict[str, list[Value]]:
    """Each input's values by its name, however many dimensions it has. Raises ApiError, naming the input."""
    raws = request.raw_input_contents
    if raws and len(raws) != len(request.inputs):
        raise invalid(
            "raw_input_contents", f"must be one for each of the {len(request.inputs)} inputs, not {len(raws)}"
        )
    read: dict[str, list[Value]] = {}
    for i, tensor in enumerate(request.inputs):
        name = printable(tensor.name)
        if tensor.name in read:
            raise invalid(name, "this input is there twice")
        values = _raw(tensor, raws[i]) if raws else _typed(tensor)
        if any(size < 0 for size in tensor.shape) or len(values) != math.prod(tensor.shape):
            shape = list(tensor.shape[:8])
            raise invalid(name, f"has {len(values)} values, which its shape {shape} has no place for")
        read[tensor.name] = values
    return read


def text_tensor(name: str, texts: Sequence[str]) -> tuple[kserve_pb2.ModelInferResponse.InferOutputTensor, bytes]:
    encoded = [text.encode() for text in texts]
    return _described(name, "BYTES", len(texts)), b"".join(LENGTH.pack(len(each)) + each for each in encoded)


def int_tensor(name: str, numbers: Sequence[int]) -> tuple[kserve_pb2.ModelInferResponse.InferOutputTensor, bytes]:
    return _described(name, "INT32", len(numbers)), struct.pack(f"<{len(numbers)}i", *numbers)


def _described(name: str, datatype: str, size: int) -> kserve_pb2.ModelInferResponse.InferOutputTensor:
    return kserve_pb2.ModelInferResponse.InferOutputTensor(name=name, datatype=datatype, shape=[size])


def _raw(tensor: kserve_pb2.ModelInferRequest.InferInputTensor, raw: bytes) -> list[Value]:
    name = printable(tensor.name)
    if tensor.HasField("contents"):
        raise invalid(name, "its values are there twice: in contents and in raw_input_contents")
    if tensor.datatype == "BYTES":
        return _texts(name, raw)
    letter = FORMATS.get(tensor.datatype)
    if letter is None:
        raise _unknown_datatype(tensor)
    size = struct.calcsize(letter)
    if len(raw) % size:
        raise invalid(name, f"{len(raw)} bytes are no whole number of {tensor.datatype}")
    return list(struct.unpack(f"<{len(raw) // size}{letter}", raw))


def _texts(name: str, raw: bytes) -> list[Value]:
    texts: list[Value] = []
    at = 0
    while at < len(raw):
        start = at + LENGTH.size
        end = start + LENGTH.unpack_from(raw, at)[0] if start <= len(raw) else start
        if end > len(raw):
            raise invalid(name, "its bytes end within a text; each has its length before it, in four bytes")
        texts.append(raw[start:end])
        at = end
    return texts


def _typed(tensor: kserve_pb2.ModelInferRequest.InferInputTensor) -> list[Value]:
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        raise _unknown_datatype(tensor)
    return list(getattr(tensor.contents, field))


def _unknown_datatype(tensor: kserve_pb2.ModelInferRequest.InferInputTensor) -> Exception:
    return invalid(printable(tensor.name), f"the datatype {printable(tensor.datatype)!r} is not supported here")
