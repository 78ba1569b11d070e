"""What KServe clients are told: the model's metadata, whole answers, and the pieces of streamed ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxy.fronts.kserve_tensors import int_tensor, text_tensor
from proxy.request.event_buffer import FinishedEvent, TokenEvent
from rpc import kserve_pb2

VERSION = "1"
INPUTS = {
    "text_input": "BYTES", "stream": "BOOL", "sampling_parameters": "BYTES", "exclude_input_in_output": "BOOL",
    "input_ids": "INT32", "max_tokens": "INT32", "min_tokens": "INT32", "temperature": "FP32", "top_p": "FP32",
    "top_k": "INT32", "min_p": "FP32", "presence_penalty": "FP32", "frequency_penalty": "FP32",
    "repetition_penalty": "FP32", "random_seed": "UINT64", "stop_words": "BYTES", "stop_token_ids": "INT32",
    "ignore_eos": "BOOL", "n": "INT32",
}  # fmt: skip
OUTPUTS = {
    "text_output": "BYTES", "finish_reason": "BYTES", "index": "INT32",
    "num_input_tokens": "INT32", "num_output_tokens": "INT32",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """Of one choice: what one message of a stream has, or one row of a whole answer."""

    text: str
    index: int
    end: FinishedEvent | None = None  # None: it goes on


def model_metadata(name: str) -> kserve_pb2.ModelMetadataResponse:
    return kserve_pb2.ModelMetadataResponse(
        name=name, versions=[VERSION], platform="pdserve", inputs=_described(INPUTS), outputs=_described(OUTPUTS)
    )


def pieces_of(event: TokenEvent | FinishedEvent) -> list[Piece]:
    """None for a token whose text is held back."""
    if isinstance(event, FinishedEvent):
        return [Piece("", event.choice, event)]
    return [Piece(event.text, event.choice)] if event.text else []


def answer(
    request: kserve_pb2.ModelInferRequest, model: str, pieces: Sequence[Piece], *, is_final: bool
) -> kserve_pb2.ModelInferResponse:
    """The outputs that were asked for, one row each for every piece."""
    ends = [piece.end for piece in pieces]
    tensors = {
        "text_output": text_tensor("text_output", [piece.text for piece in pieces]),
        "finish_reason": text_tensor("finish_reason", [end.reason if end else "" for end in ends]),
        "index": int_tensor("index", [piece.index for piece in pieces]),
        "num_input_tokens": int_tensor("num_input_tokens", [end.usage.prompt_tokens if end else 0 for end in ends]),
        "num_output_tokens": int_tensor(
            "num_output_tokens", [end.usage.completion_tokens if end else 0 for end in ends]
        ),
    }
    wanted = [tensors[output.name] for output in request.outputs] or list(tensors.values())
    response = kserve_pb2.ModelInferResponse(
        model_name=model,
        model_version=VERSION,
        id=request.id,
        outputs=[described for described, _ in wanted],
        raw_output_contents=[raw for _, raw in wanted],
    )
    response.parameters["triton_final_response"].bool_param = is_final
    return response


def _described(tensors: Mapping[str, str]) -> list[kserve_pb2.ModelMetadataResponse.TensorMetadata]:
    return [
        kserve_pb2.ModelMetadataResponse.TensorMetadata(name=name, datatype=datatype, shape=[-1])
        for name, datatype in tensors.items()
    ]
