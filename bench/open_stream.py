"""One streamed completion read with as little work as can be, so that a thousand of them fit into one client.

Each event of the stream is one arrival; what it says is not looked at.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from urllib.parse import urlsplit

import grpc

from rpc import inference_pb2, inference_pb2_grpc, worker_pb2, worker_pb2_grpc

LIMIT_S = 120.0  # of one stream


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Seconds on `perf_counter`."""

    sent_at: float
    token_at: Sequence[float]

    @property
    def first_s(self) -> float:
        return self.token_at[0] - self.sent_at

    @property
    def per_token_s(self) -> float:
        """From the first token to the last."""
        return (self.token_at[-1] - self.token_at[0]) / (len(self.token_at) - 1)


async def over_http(url: str, model: str, prompt: Sequence[int], max_tokens: int) -> Arrivals:
    """Through `/v1/completions` of any server that takes token ids. Raises RuntimeError when it refuses."""
    to = urlsplit(url)
    sampling = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    body = json.dumps({"model": model, "prompt": list(prompt), "stream": True, **sampling})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {to.netloc}\r\nContent-Type: application/json\r\n"
    head += f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection(to.hostname, to.port)
        try:
            sent_at = perf_counter()
            writer.write((head + body).encode())
            status = await reader.readline()
            if b" 200 " not in status:
                raise RuntimeError(f"{url} answered {status!r}: {await reader.read(1000)!r}")
            await reader.readuntil(b"\r\n\r\n")
            token_at = [perf_counter() async for line in reader if line.startswith(b"data: {")]
        finally:
            writer.close()
    return Arrivals(sent_at, token_at[:max_tokens])


async def over_grpc(channel: grpc.aio.Channel, prompt: Sequence[int], max_tokens: int) -> Arrivals:
    """Through the proxy's `Generate`."""
    sampling = inference_pb2.Sampling(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    request = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=prompt), sampling=sampling)
    sent_at = perf_counter()
    call = inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=LIMIT_S)
    token_at = [perf_counter() async for response in call if response.HasField("token")]
    return Arrivals(sent_at, token_at)


class DirectWorker:
    """Talks to a worker as a proxy does, one request at a time."""

    def __init__(self, channel: grpc.aio.Channel, incarnation: str) -> None:
        self._call = worker_pb2_grpc.DecodeStub(channel).Session()
        self._incarnation = incarnation
        self._num_sent = 0

    async def open(self) -> None:
        hello = worker_pb2.Hello(
            protocol_version=worker_pb2.PROTOCOL_VERSION,
            proxy_incarnation="bench",
            worker_incarnation=self._incarnation,
        )
        await self._call.write(worker_pb2.DecodeCommand(hello=hello))
        await self._call.read()

    async def complete(self, prompt: Sequence[int], max_tokens: int) -> Arrivals:
        self._num_sent += 1
        sampling = worker_pb2.SamplingParams(max_tokens=max_tokens, top_p=1, repetition_penalty=1)
        request = worker_pb2.TokenRequest(
            request_id=f"bench-{self._num_sent}", prompt_ids=prompt, sampling=sampling, timeout_s=LIMIT_S
        )
        sent_at = perf_counter()
        start = worker_pb2.StartDecode(request=request, attempt=1, role_epoch=1)
        await self._call.write(worker_pb2.DecodeCommand(start=start))
        token_at: list[float] = []
        async with asyncio.timeout(LIMIT_S):
            while len(token_at) < max_tokens:
                event = await self._call.read()
                if event.HasField("tokens"):
                    token_at.append(perf_counter())
        return Arrivals(sent_at, token_at)
