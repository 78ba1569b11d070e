"""One P and one D over the fake runner in this process, with everything between them real except the wire."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TypeVar

from engine.engine import Engine, StepResult
from engine.engine_thread import EngineThread
from engine.fake_runner import FakeModel, FakeRunner
from engine.kv_cache import KVCache
from engine.request import Request, RequestKind, SamplingParams
from kv_transfer.config import TransferConfig
from kv_transfer.handoff import Handoff, HandoffResult
from kv_transfer.lease import LeaseTable
from kv_transfer.local import LocalNetwork, LocalTransport
from kv_transfer.local_peer import LocalPeer
from kv_transfer.messages import Compatibility, PeerInfo, Ticket, TransportInfo
from kv_transfer.peer import Peer
from kv_transfer.peer_link import PeerLink
from kv_transfer.staging import StagingRing
from kv_transfer.transport import Transport
from kv_transfer.two_sided import TwoSidedTransport
from tests.contract.ends import MakeTransport
from tests.engine_config import engine_config

T = TypeVar("T")
BLOCK_SIZE = 4
WAIT_S = 20.0  # until a test gives up
SESSION = bytes(range(16))


def make_engine(model: FakeModel | None = None, **fields: object) -> Engine:
    defaults = {"block_size": BLOCK_SIZE, "num_blocks": 64, "prefill_chunk_size": 8, "max_num_batched_tokens": 64}
    config = engine_config(**(defaults | fields))
    model = model or FakeModel()
    cache = KVCache(model.layout(config.block_size), config.num_blocks)
    return Engine(config, model.info(), FakeRunner(cache, model), cache)


def transfer_config(**fields: object) -> TransferConfig:
    """Slots of two blocks, so that a chunk takes more than one."""
    block_bytes = FakeModel().layout(BLOCK_SIZE).block_bytes
    defaults = {"staging_slots": 4, "staging_slot_bytes": 2 * block_bytes, "max_quarantined_slots": 3}
    return TransferConfig.model_validate(defaults | fields)


def ticket(attempt: int = 1, session: bytes = SESSION) -> Ticket:
    return Ticket(session, attempt)


def make_request(
    request_id: str,
    prompt: Sequence[int],
    kind: RequestKind,
    max_tokens: int = 4,
    stop_token_ids: frozenset[int] = frozenset(),
    cache_salt: str = "",
    priority: int = 0,
    awaits_kv: bool = False,
) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop_token_ids)
    return Request(
        request_id,
        list(prompt),
        len(prompt),
        sampling,
        kind,
        priority,
        cache_salt,
        arrived_at=monotonic(),
        awaits_kv=awaits_kv,
    )


@dataclass(slots=True)
class Side:
    """What either worker has."""

    incarnation: str
    engine: Engine
    thread: EngineThread
    transport: Transport
    ring: StagingRing
    info: PeerInfo

    @property
    def local(self) -> LocalTransport:
        """The same, with the faults that it can be told to have."""
        assert isinstance(self.transport, LocalTransport)
        return self.transport

    @classmethod
    def make(
        cls,
        incarnation: str,
        engine: Engine,
        config: TransferConfig,
        make_transport: MakeTransport,
        on_exhausted: Callable[[str], None] = lambda reason: None,
        **differs: object,
    ) -> Side:
        """`differs`: fields of what it says it is compatible with."""
        ring = StagingRing(config, engine.cache.block_bytes, "cpu", on_exhausted)
        transport = make_transport(incarnation, engine.cache, ring)
        layout = engine.cache.layout
        compatibility = Compatibility(
            protocol_version=1,
            model_fingerprint=engine.model.fingerprint,
            kv_dtype=layout.dtype,
            block_size=layout.block_size,
            num_layers=layout.num_layers,
            num_kv_heads=layout.num_kv_heads,
            head_dim=layout.head_dim,
        )
        info = PeerInfo(
            incarnation,
            replace(compatibility, **differs),  # type: ignore[arg-type]
            (TransportInfo(transport.name, transport.metadata()),),
        )
        return cls(incarnation, engine, EngineThread(engine, tick_s=0.005), transport, ring, info)

    async def call(self, command: Callable[[Engine], T]) -> T:
        return await asyncio.wrap_future(self.thread.call(command))

    async def reserve(self, request: Request) -> Request:
        """Once it holds its blocks and waits for KV."""
        await self.call(lambda engine: engine.add(request))
        await until(lambda: bool(request.blocks), self)
        return request

    async def check_nothing_is_held(self) -> None:
        """Soon no slot is busy, no block that is not free or cached, and the books add up."""
        await until(lambda: self.ring.counts().free == len(self.ring.memory) and not self.engine.requests, self)
        await self.call(lambda engine: engine.check_integrity())
        counts = self.engine.pool.counts()
        assert counts.used == counts.leased == 0

    async def stop(self) -> None:
        if isinstance(self.transport, LocalTransport):
            self.transport.resume()
        await asyncio.to_thread(self.thread.stop)
        await asyncio.to_thread(self.transport.close)


async def until(condition: Callable[[], bool], *sides: Side) -> None:
    """Waits, one turn of these engines at a time."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            for side in sides:
                await side.call(lambda _: None)


class Pair:
    """Maintains two engine threads and counts every token that D generates. Use inside a running loop."""

    def __init__(
        self,
        config: TransferConfig,
        prefill_engine: Engine,
        decode_engine: Engine,
        make_transport: MakeTransport | None = None,  # None: local ones
        **differs: object,  # fields of what P says it is compatible with
    ) -> None:
        self.config = config
        self.exhausted: list[str] = []
        network = LocalNetwork()
        self._make_transport = make_transport or (lambda name, cache, ring: LocalTransport(name, cache, network))
        self._numbers = itertools.count()
        self.decode = self._side("D", decode_engine)
        self.tokens: dict[str, list[int]] = {}
        self.decode.thread.subscribe(self._collect)
        self.decode.thread.start()
        self.start_prefill_worker("P", prefill_engine, **differs)
        self.link = self.new_link(self.peer)

    def start_prefill_worker(self, incarnation: str, engine: Engine, **differs: object) -> None:
        """The one that the next hand-offs are from."""
        self.prefill = self._side(incarnation, engine, **differs)
        transport = self.prefill.transport
        self.leases = LeaseTable(engine, self.config, transport.keep_awake)
        two_sided = {transport.name: transport} if isinstance(transport, TwoSidedTransport) else {}
        self.peer = LocalPeer(self.prefill.info, self.leases, self.prefill.thread, two_sided=two_sided)
        self.prefill.thread.start()

    def new_link(self, peer: Peer, incarnation: str = "P", transport: Transport | None = None) -> PeerLink:
        transport = transport or self.decode.transport
        return PeerLink(peer, incarnation, self.decode.info, {transport.name: transport}, self.config)

    async def start_prefill(self, prompt: Sequence[int], ticket: Ticket, **fields: object) -> Request:
        request = make_request(f"p{next(self._numbers)}", prompt, RequestKind.PREFILL, **fields)  # type: ignore[arg-type]
        leases = self.leases
        await self.prefill.call(lambda _: leases.prefill(request, ticket, monotonic()))
        return request

    async def abort_prefill(self, ticket: Ticket) -> None:
        await self.prefill.call(lambda _: self.leases.abort(ticket, monotonic()))

    async def reserve(self, prompt: Sequence[int], **fields: object) -> Request:
        """A request of D that holds its blocks and waits for KV."""
        request = make_request(
            f"d{next(self._numbers)}",
            prompt,
            RequestKind.GENERATE,
            awaits_kv=True,
            **fields,  # type: ignore[arg-type]
        )
        return await self.decode.reserve(request)

    async def hand_off(
        self, request: Request, ticket: Ticket, link: PeerLink | None = None, timeout_s: float = WAIT_S
    ) -> HandoffResult:
        handoff = Handoff(request, ticket, link or self.link, self.decode.thread, self.decode.ring, self.config)
        return await handoff.run(asyncio.get_running_loop().time() + timeout_s)

    async def finish(self, request: Request, result: HandoffResult) -> list[int]:
        """Runs the received request to its end; all of its tokens."""
        output = await self.on_decode(lambda engine: engine.accept(request.request_id, result.first_token))
        await self.until(lambda: request.request_id not in self.decode.engine.requests)
        return [output.token_id, *self.tokens.get(request.request_id, [])]

    async def drop(self, request: Request) -> None:
        """What D's service does when a hand-off has failed."""
        await self.on_decode(lambda engine: engine.abort(request.request_id))

    async def serve(self, prompt: Sequence[int], ticket: Ticket, **fields: object) -> list[int]:
        """One request from end to end."""
        await self.start_prefill(prompt, ticket, **fields)
        request = await self.reserve(prompt, **fields)
        return await self.finish(request, await self.hand_off(request, ticket))

    async def on_decode(self, command: Callable[[Engine], T]) -> T:
        return await self.decode.call(command)

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition, self.prefill, self.decode)

    async def check_nothing_is_held(self) -> None:
        """On either side, soon."""
        await self.until(lambda: self.leases.counts().active == 0)
        for side in (self.prefill, self.decode):
            await side.check_nothing_is_held()

    async def stop(self) -> None:
        await self.link.close()
        for side in (self.prefill, self.decode):
            await side.stop()

    def _side(self, incarnation: str, engine: Engine, **differs: object) -> Side:
        return Side.make(incarnation, engine, self.config, self._make_transport, self.exhausted.append, **differs)

    def _collect(self, result: StepResult) -> None:
        for output in result.tokens:
            self.tokens.setdefault(output.request_id, []).append(output.token_id)
