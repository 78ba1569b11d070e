"""A generation over gRPC without generated code: the server describes itself (pip install grpcio-reflection).

python examples/grpc_generate.py "What is the capital of France?"
python examples/grpc_generate.py --address llm.example.org:8001 --ca ca.crt --key pdserve-…
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "pdserve.v1.Inference"


def open_channel(address: str, authority: Path | None, key: str | None) -> grpc.Channel:
    """`key`: sent with every call, reflection's too; only over TLS."""
    if authority is None:
        return grpc.insecure_channel(address)
    credentials = grpc.ssl_channel_credentials(authority.read_bytes())
    if key is not None:
        credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(key))
    return grpc.secure_channel(address, credentials)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default="What is the capital of France?")
    parser.add_argument("--address", default="127.0.0.1:8001")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--ca", type=Path, help="the authority's certificate, where the port has TLS")
    parser.add_argument("--key", help="the API key, where one is asked for")
    options = parser.parse_args()
    if options.key is not None and options.ca is None:
        parser.error("--key needs --ca: without TLS anybody on the way could read the key")

    with open_channel(options.address, options.ca, options.key) as channel:
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
