"""A generation with Triton's own client, whole and then streamed (pip install tritonclient grpcio protobuf).

python examples/triton_generate.py "The capital of France is"
"""

from __future__ import annotations

import argparse
import queue
import sys
from typing import Any

import numpy
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException


def inputs(**values: Any) -> list[triton.InferInput]:
    """Of each name and numpy scalar, a tensor of one element."""
    tensors = []
    for name, value in values.items():
        array = numpy.array([value])
        datatype = {"U": "BYTES", "b": "BOOL", "i": "INT32", "f": "FP32"}[array.dtype.kind]
        kind = {"BYTES": numpy.object_, "INT32": numpy.int32, "FP32": numpy.float32}.get(datatype, array.dtype)
        tensors.append(triton.InferInput(name, [1], datatype))
        tensors[-1].set_data_from_numpy(array.astype(kind))
    return tensors


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default="The capital of France is")
    parser.add_argument("--address", default="127.0.0.1:8001")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--max-tokens", type=int, default=16)
    options = parser.parse_args()
    asked = {"text_input": options.prompt, "max_tokens": options.max_tokens, "temperature": 0.0}

    with triton.InferenceServerClient(options.address) as client:
        try:
            result = client.infer(options.model, inputs(**asked), client_timeout=120)
        except InferenceServerException as error:
            print(f"{error.status()}: {error.message()}", file=sys.stderr)
            return 1
        print(result.as_numpy("text_output")[0].decode())

        answers: queue.Queue[tuple[triton.InferResult | None, InferenceServerException | None]] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(options.model, inputs(**asked, stream=True))
        is_final = False
        while not is_final:
            result, failure = answers.get(timeout=120)
            if result is None:
                print(failure, file=sys.stderr)
                return 1
            print(result.as_numpy("text_output")[0].decode(), end="", flush=True)
            is_final = result.get_response().parameters["triton_final_response"].bool_param
        print(f"\n{result.as_numpy('finish_reason')[0].decode()}, {result.as_numpy('num_output_tokens')[0]} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
