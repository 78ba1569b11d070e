"""What Triton's own client sees of a proxy, as one JSON line: `python -m tests.unit.proxy.triton_client HOST:PORT`.

A process of its own: the client registers the protocol's messages under the names that the server has for them.
"""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

import numpy
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException

MODEL = "bytes"


def text(name: str, *values: str) -> triton.InferInput:
    tensor = triton.InferInput(name, [len(values)], "BYTES")
    tensor.set_data_from_numpy(numpy.array([value.encode() for value in values], dtype=numpy.object_))
    return tensor


def number(name: str, datatype: str, value: float) -> triton.InferInput:
    tensor = triton.InferInput(name, [1], datatype)
    tensor.set_data_from_numpy(numpy.array([value]).astype({"BOOL": "?", "INT32": "i4", "FP32": "f4"}[datatype]))
    return tensor


def refusal(client: triton.InferenceServerClient, *inputs: triton.InferInput, model: str = MODEL) -> list[str]:
    try:
        client.infer(model, list(inputs), client_timeout=30)
    except InferenceServerException as error:
        return [error.status(), error.message()]
    return ["OK", ""]


def streamed(client: triton.InferenceServerClient) -> dict[str, Any]:
    """Two good requests and a bad one on one stream: the pieces by request, and the errors."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for name in ("one", "two"):
        client.async_stream_infer(MODEL, [text("text_input", "hi"), number("stream", "BOOL", True)], request_id=name)
    client.async_stream_infer(
        MODEL,
        [text("text_input", "hi"), number("temperature", "FP32", 9.0)],
        request_id="bad",
        enable_empty_final_response=True,
    )
    seen: dict[str, Any] = {"one": [], "two": [], "errors": []}
    num_final = 0
    while num_final < 2 or not seen["errors"]:
        result, error = answers.get(timeout=30)
        if error is not None:
            seen["errors"].append(error.message())
            continue
        response = result.get_response()
        seen[response.id].append(result.as_numpy("text_output")[0].decode())
        num_final += response.parameters["triton_final_response"].bool_param
    client.stop_stream()
    return seen


def main() -> None:
    with triton.InferenceServerClient(sys.argv[1]) as client:
        metadata = client.get_model_metadata(MODEL, as_json=True)
        result = client.infer(
            MODEL,
            [text("text_input", "hi"), number("max_tokens", "INT32", 9), text("sampling_parameters", '{"top_p": 0.5}')],
            request_id="mine",
            outputs=[triton.InferRequestedOutput("text_output"), triton.InferRequestedOutput("num_output_tokens")],
            parameters={"seed": 7},
            timeout=30_000_000,
        )
        batch = client.infer(MODEL, [text("text_input", "a", "b")])
        seen = {
            "ready": [client.is_server_live(), client.is_server_ready(), client.is_model_ready(MODEL)],
            "other_ready": client.is_model_ready("other"),
            "server": client.get_server_metadata().name,
            "inputs": [tensor["name"] for tensor in metadata["inputs"]],
            "text": result.as_numpy("text_output")[0].decode(),
            "num_output_tokens": int(result.as_numpy("num_output_tokens")[0]),
            "outputs": [output.name for output in result.get_response().outputs],
            "id": result.get_response().id,
            "batch": [each.decode() for each in batch.as_numpy("text_output")],
            "streamed": streamed(client),
            "other_model": refusal(client, text("text_input", "hi"), model="other"),
            "bad_value": refusal(client, text("text_input", "hi"), number("temperature", "FP32", 9.0)),
            "unknown_input": refusal(client, text("text_input", "hi"), number("bad_words", "INT32", 1)),
            "no_text": refusal(client, number("max_tokens", "INT32", 1)),
            "stream_in_infer": refusal(client, text("text_input", "hi"), number("stream", "BOOL", True)),
        }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
