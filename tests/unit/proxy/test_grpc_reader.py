"""A gRPC client that never reads: its request is ended and its tokens dropped, and the rest goes on."""

from __future__ import annotations

import asyncio

import grpc

from rpc import inference_pb2, inference_pb2_grpc
from tests.unit.proxy.conftest import MakeCluster
from tests.unit.proxy.fake_worker import PATIENCE_S


async def test_a_client_that_never_reads_has_its_request_ended_and_others_go_on(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, max_buffered_tokens=2000)
    options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(cluster.addresses.grpc, options=options) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        unread = stub.Generate(inference_pb2.GenerateRequest(text="x"), timeout=PATIENCE_S)
        _, decode = await cluster.starts()
        aborting = asyncio.create_task(cluster.decode.next_abort())
        index = 0
        while not aborting.done():
            cluster.decode.say(decode, b"a" * 500, index=index)
            index += 500
            await asyncio.wait([aborting], timeout=0.001)
        await aborting
        await cluster.until(lambda: cluster.proxy.service.running == [])
        read = stub.Generate(inference_pb2.GenerateRequest(text="y"), timeout=PATIENCE_S)
        _, decode = await cluster.starts()
        cluster.decode.say(decode, b"b", finish="length")
        assert [event.WhichOneof("event") async for event in read] == ["started", "token", "finished"]
        unread.cancel()
