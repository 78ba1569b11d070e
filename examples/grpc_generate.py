"""A generation over gRPC without generated code: the server describes itself (pip install grpcio-reflection).

python examples/grpc_generate.py "What is the capital of France?"
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "pdserve.v1.Inference"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default="What is the capital of France?")
    parser.add_argument("--address", default="127.0.0.1:8001")
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()

    with grpc.insecure_channel(options.address) as channel:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        method = pool.FindServiceByName(SERVICE).FindMethodByName("Generate")
        request_class: Any = GetMessageClass(method.input_type)
        response_class: Any = GetMessageClass(method.output_type)
        generate = channel.unary_stream(
            f"/{SERVICE}/Generate",
            request_serializer=request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )
        request = request_class(
            chat={"messages": [{"role": "user", "content": options.prompt}]},
            sampling={"temperature": 0, "max_tokens": options.max_tokens},
        )
        try:
            for response in generate(request, timeout=120):
                if response.HasField("token"):
                    print(response.token.text, end="", flush=True)
                elif response.HasField("finished"):
                    print(f"\n{response.finished}")
        except grpc.RpcError as error:
            print(f"{error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
