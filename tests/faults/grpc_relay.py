"""A gRPC relay before a worker or a pool node that spoils what others and it say to each other about KV.

Whatever else passes, such as the proxy's streams, passes untouched. It can also cut every connection for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from rpc import peer_pb2, pool_pb2
from tests.faults.fault import Draw, Fault, Faults, Message

OPEN = "/pdserve.v1.Peer/Open"
OFFER = "/pdserve.v1.Pool/Offer"
CALLS = {
    "/pdserve.v1.Peer/Handshake": (Message.HANDSHAKE, Message.INTRODUCTION),  # of a node that pulls, too
    "/pdserve.v1.Peer/Renew": (Message.RENEW, Message.ALIVE),
    "/pdserve.v1.Peer/Commit": (Message.COMMIT, Message.VERDICT),
    "/pdserve.v1.Peer/Close": (Message.CLOSE, Message.CLOSED),
    "/pdserve.v1.Peer/Join": (Message.JOIN, Message.JOINED),
    "/pdserve.v1.Peer/Send": (Message.SEND, Message.AGREED),
    "/pdserve.v1.Pool/Handshake": (Message.POOL_HANDSHAKE, Message.POOL_INTRODUCTION),
    "/pdserve.v1.Pool/Lookup": (Message.LOOKUP, Message.FOUND),
    "/pdserve.v1.Pool/Commit": (Message.POOL_COMMIT, Message.POOL_VERDICT),
    "/pdserve.v1.Pool/Close": (Message.POOL_CLOSE, Message.POOL_CLOSED),
    OFFER: (Message.OFFER, Message.HELD),
    "/pdserve.v1.BlockOffers/CommitOffer": (Message.PULL_COMMIT, Message.PULL_VERDICT),
}
EVENTS = {"chunk": Message.CHUNK, "done": Message.DONE, "ended": Message.ENDED}
Context = grpc.aio.ServicerContext[Any, Any]


class GrpcRelay:
    """Maintains a server on a port of its own, whose every call goes to `target`. Lives on one event loop.

    Who offers to it is called back at the address that `offered_at` has for its own.
    """

    def __init__(self, target: str, faults: Faults, offered_at: Mapping[str, str]) -> None:
        self.spoils = False  # from when on messages are hit
        self.address = ""
        self._target = target
        self._faults = faults
        self._offered_at = offered_at
        self._channel: grpc.aio.Channel | None = None
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._target, options=[("grpc.use_local_subchannel_pool", 1)])
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((Passage(self),))
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None and self._channel is not None:
            await self._server.stop(0)
            await self._channel.close()

    async def cut(self, down_s: float) -> None:
        """Every connection breaks, and none is taken for so long."""
        await self.stop()
        await asyncio.sleep(down_s)
        await self.start()

    def relay(self, method: str, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        if self.spoils and method == OPEN:
            return self._open(method, requests, context)
        if self.spoils and method in CALLS:
            return self._call(method, requests, context)
        return self._pass(method, requests, context)

    async def _pass(self, method: str, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        connect: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._connected.stream_stream(method)
        call = connect(requests, metadata=context.invocation_metadata())
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        finally:
            call.cancel()

    async def _call(self, method: str, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        message, answer = CALLS[method]
        request = await anext(aiter(requests))
        if method == OFFER:
            request = self._redirect(request)
        draw = self._faults.draw(message, self._target)
        await self._travel(draw, context)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._connected.unary_unary(method)
        try:
            response = await call(request)
            if draw.fault is Fault.TWICE:
                await call(request)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        await self._travel(self._faults.draw(answer, self._target), context)
        yield response

    async def _open(self, method: str, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        request = await anext(aiter(requests))
        draw = self._faults.draw(Message.OPEN, self._target)
        await self._travel(draw, context)
        open_call: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._connected.unary_stream(method)
        calls = [open_call(request) for _ in range(2 if draw.fault is Fault.TWICE else 1)]
        held: bytes | None = None
        try:
            async for event in calls[-1]:
                kind = peer_pb2.SessionEvent.FromString(event).WhichOneof("event")
                hit = self._faults.draw(EVENTS[kind], self._target)
                if hit.fault is Fault.OVERTAKEN and held is None:
                    held = event
                    continue
                if hit.fault is Fault.LOST:
                    continue
                await self._travel(hit, context)
                for _ in range(2 if hit.fault is Fault.TWICE else 1):
                    yield event
                if held is not None:
                    yield held
                    held = None
            if held is not None:
                yield held
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        finally:
            for call in calls:
                call.cancel()

    def _redirect(self, request: bytes) -> bytes:
        offer = pool_pb2.OfferRequest.FromString(request)
        offer.address = self._offered_at.get(offer.address, offer.address)
        return offer.SerializeToString()

    async def _travel(self, draw: Draw, context: Context) -> None:
        match draw.fault:
            case Fault.LOST:
                await asyncio.get_running_loop().create_future()  # until the caller gives up
            case Fault.REFUSED:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "lost on its way")
            case Fault.LATE | Fault.OVERTAKEN:
                await asyncio.sleep(draw.delay_s)

    @property
    def _connected(self) -> grpc.aio.Channel:
        assert self._channel is not None
        return self._channel


class Passage(grpc.GenericRpcHandler):
    """Any method, as bytes."""

    def __init__(self, relay: GrpcRelay) -> None:
        self._relay = relay

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        method = handler_call_details.method

        async def behave(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            async for response in self._relay.relay(method, requests, context):
                yield response

        return grpc.stream_stream_rpc_method_handler(behave)
