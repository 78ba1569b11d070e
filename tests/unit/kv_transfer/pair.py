"""One P and one D over the fake runner in this process, with everything between them real except the wire."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from tests.engine_config import engine_config

T = TypeVar("T")
BLOCK_SIZE = 4
WAIT_S = 5.0  # until a test gives up
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
    transport: LocalTransport
    ring: StagingRing
    info: PeerInfo

    def blocks_in_use(self) -> int:
        counts = self.engine.pool.counts()
        return counts.used + counts.leased


class Pair:
    """Maintains two engine threads and counts every token that D generates. Use inside a running loop."""

    def __init__(self, config: TransferConfig, prefill_engine: Engine, decode_engine: Engine) -> None:
        self.config = config
        self.exhausted: list[str] = []
        self.awake: list[bool] = []
        network = LocalNetwork()
        self.prefill = self._side("P", prefill_engine, network)
        self.decode = self._side("D", decode_engine, network)
        self.leases = LeaseTable(prefill_engine, config, self.awake.append)
        self.peer = LocalPeer(self.prefill.info, self.leases, self.prefill.thread)
        self.link = self.new_link(self.peer)
        self.tokens: dict[str, list[int]] = {}
        self._numbers = itertools.count()
        self.decode.thread.subscribe(self._collect)
        self.prefill.thread.start()
        self.decode.thread.start()

    def new_link(self, peer: Peer, incarnation: str = "P") -> PeerLink:
        transports = {self.decode.transport.name: self.decode.transport}
        return PeerLink(peer, incarnation, self.decode.info, transports, self.config)

    async def start_prefill(self, prompt: Sequence[int], ticket: Ticket, **fields: object) -> Request:
        request = make_request(f"p{next(self._numbers)}", prompt, RequestKind.PREFILL, **fields)  # type: ignore[arg-type]
        leases, thread = self.leases, self.prefill.thread
        await asyncio.wrap_future(thread.call(lambda _: leases.prefill(request, ticket, monotonic())))
        return request

    async def abort_prefill(self, ticket: Ticket) -> None:
        await asyncio.wrap_future(self.prefill.thread.call(lambda _: self.leases.abort(ticket, monotonic())))

    async def reserve(self, prompt: Sequence[int], **fields: object) -> Request:
        """A request of D that holds its blocks and waits for KV."""
        request = make_request(
            f"d{next(self._numbers)}",
            prompt,
            RequestKind.GENERATE,
            awaits_kv=True,
            **fields,  # type: ignore[arg-type]
        )
        await self.on_decode(lambda engine: engine.add(request))
        await self.until(lambda: bool(request.blocks))
        return request

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
        return await asyncio.wrap_future(self.decode.thread.call(command))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits, one turn of both engines at a time."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                for side in (self.prefill, self.decode):
                    await asyncio.wrap_future(side.thread.call(lambda _: None))

    async def check_nothing_is_held(self) -> None:
        """No lease, no busy slot, no block that is not free or cached, and books that add up."""
        await self.until(lambda: self.leases.counts().active == 0 and not self.prefill.engine.requests)
        await self.until(lambda: self.decode.ring.counts().free == self.config.staging_slots)
        for side in (self.prefill, self.decode):
            await asyncio.wrap_future(side.thread.call(lambda engine: engine.check_integrity()))
            assert side.blocks_in_use() == 0

    async def stop(self) -> None:
        await self.link.close()
        for side in (self.prefill, self.decode):
            side.transport.resume()
            await asyncio.to_thread(side.thread.stop)
            side.transport.close()

    def _side(self, incarnation: str, engine: Engine, network: LocalNetwork) -> Side:
        thread = EngineThread(engine, tick_s=0.005)
        transport = LocalTransport(incarnation, engine.cache, network)
        ring = StagingRing(self.config, engine.cache.block_bytes, "cpu", self.exhausted.append)
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
        transports = (TransportInfo(transport.name, transport.metadata()),)
        return Side(incarnation, engine, thread, transport, ring, PeerInfo(incarnation, compatibility, transports))

    def _collect(self, result: StepResult) -> None:
        for output in result.tokens:
            self.tokens.setdefault(output.request_id, []).append(output.token_id)
