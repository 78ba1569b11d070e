"""From a prefill worker to a decode worker: a whole hand-off between two engines of this process."""

from __future__ import annotations

import itertools
import os
from time import monotonic

from torch import Tensor

from engine.engine import Engine
from kv_transfer.config import TransferConfig
from kv_transfer.messages import HandoffError, Ticket
from kv_transfer.peer_link import PeerLink
from tests.contract.route import NUM_BLOCKS, PROMPT, WAIT_S, Medium, Taken, computed, rows
from tests.contract.wire import Wire, WiredPeer, WiredTransport
from tests.unit.kv_transfer.pair import Pair, make_engine


class PeerRoute:
    def __init__(self, medium: Medium, config: TransferConfig, differs: dict[str, object]) -> None:
        self.wire = Wire()
        self.expected = computed().blocks
        self._medium = medium
        self._pair = Pair(config, make_engine(), make_engine(), medium.make, **differs)
        self._link = self._new_link()
        self._ticket = Ticket(bytes(16), 1)
        self._numbers = itertools.count(2)

    async def take(self) -> Taken:
        pair, self._ticket = self._pair, Ticket(os.urandom(16), 1)
        await pair.start_prefill(PROMPT, self._ticket)
        request = await pair.reserve(PROMPT)
        try:
            await pair.hand_off(request, self._ticket, self._link, WAIT_S)
            return Taken(rows(pair.decode.engine.cache, request.blocks[:NUM_BLOCKS]))
        except HandoffError as error:
            return Taken((), str(error))
        finally:
            await pair.drop(request)

    def memory(self) -> Tensor:
        return self._pair.decode.engine.cache.tensor

    async def stop_source(self) -> None:
        self.wire.stop()
        self._medium.stop(self._pair.prefill.transport, self._pair.decode.transport)

    async def resume_source(self) -> None:
        self._medium.go_on(self._pair.prefill.transport, self._pair.decode.transport)
        self.wire.go_on()

    async def kill_source(self) -> None:
        self.wire.is_gone = True
        await self._pair.prefill.stop()

    async def replace_source(self) -> None:
        await self._link.close()
        self._pair.start_prefill_worker(f"P{next(self._numbers)}", make_engine())
        self.wire.is_gone = False
        self._link = self._new_link()

    async def reuse_blocks(self) -> None:
        def reuse(engine: Engine) -> None:
            self._pair.leases.abort(self._ticket, monotonic())
            blocks = engine.pool.allocate(engine.pool.num_free)
            assert blocks is not None
            engine.cache.as_bytes()[blocks] = 99
            engine.pool.release(blocks)

        await self._pair.prefill.call(reuse)

    async def let_leases_end(self) -> None:
        """None is left."""

    async def give_up(self) -> None:
        await self._pair.abort_prefill(self._ticket)

    async def check_nothing_is_held(self) -> None:
        await self._pair.check_nothing_is_held()

    async def close(self) -> None:
        self._medium.go_on(self._pair.prefill.transport, self._pair.decode.transport)
        await self._link.close()
        await self._pair.stop()

    def _new_link(self) -> PeerLink:
        pair = self._pair
        transport = WiredTransport(pair.decode.transport, self.wire)
        return pair.new_link(WiredPeer(pair.peer, self.wire), pair.prefill.incarnation, transport)
