"""One way of KV blocks: a source that has computed them, and a taker that opens, reads, and asks for the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.kv_cache import KVCache
from engine.request import RequestKind, RequestState
from kv_transfer.transport import Transport
from tests.contract.ends import MakeTransport
from tests.contract.wire import Wire
from tests.unit.kv_transfer.pair import make_engine, make_request, transfer_config

PROMPT = list(range(33))  # eight blocks and a token, in five chunks
NUM_BLOCKS = 8
WAIT_S = 30.0  # until a test gives up
PATIENT = transfer_config(
    handshake_timeout_s=WAIT_S,
    lease_s=4 * WAIT_S,
    renew_every_s=5.0,
    silent_peer_s=WAIT_S,
    transfer_timeout_s=WAIT_S,
    verdict_timeout_s=WAIT_S,
    pool_lookup_timeout_s=WAIT_S,
    pool_read_timeout_s=WAIT_S,
    pool_avoid_s=0.02,
)
HASTY = PATIENT.model_copy(  # where somebody is waited for in vain
    update={
        "handshake_timeout_s": 0.5,
        "renew_every_s": 0.05,
        "silent_peer_s": 0.3,
        "transfer_timeout_s": 0.3,
        "verdict_timeout_s": 0.3,
        "pool_lookup_timeout_s": 0.3,
        "pool_read_timeout_s": 0.3,
    }
)


@dataclass(frozen=True, slots=True)
class Taken:
    """What the taker may use: the first of the blocks, as it has them; and what was said of the others."""

    blocks: tuple[bytes, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Medium:
    """The transport that a route is over, and how its bytes are held up, where a stopped source's would be."""

    make: MakeTransport
    stop: Callable[[Transport, Transport], None] = lambda source, taker: None
    go_on: Callable[[Transport, Transport], None] = lambda source, taker: None


class Route(Protocol):
    """Made with a config, and with fields in which the source differs from the taker."""

    wire: Wire
    expected: tuple[bytes, ...]  # the prompt's full blocks

    async def take(self) -> Taken:
        """One attempt under a session of its own, from a source that has the blocks. What it took is let go of."""
        ...

    def memory(self) -> Tensor:
        """The taker's KV, all of it."""
        ...

    async def stop_source(self) -> None:
        """It answers nothing and sends nothing; what reaches it waits."""
        ...

    async def resume_source(self) -> None: ...

    async def kill_source(self) -> None: ...

    async def replace_source(self) -> None:
        """After its death: another incarnation is there, and has the blocks too."""
        ...

    async def reuse_blocks(self) -> None:
        """The lease on them has run out, and the source has written all of its blocks with something else."""
        ...

    async def let_leases_end(self) -> None:
        """As long goes by as a lease of the pool lasts. Between workers none is to be left that this would end."""
        ...

    async def give_up(self) -> None:
        """The source is told, as by the proxy, or has waited for long enough, so that it needs no word of the taker."""
        ...

    async def check_nothing_is_held(self) -> None:
        """Soon, on both sides: no block, no lease, no staging slot."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Computed:
    """The prompt's full blocks, and their keys."""

    keys: tuple[bytes, ...]
    blocks: tuple[bytes, ...]


def computed() -> Computed:
    engine = make_engine()
    request = make_request("computed", PROMPT, RequestKind.PREFILL)
    engine.add(request)
    while request.state is not RequestState.HELD:
        engine.step()
    return Computed(tuple(request.block_hashes[:NUM_BLOCKS]), rows(engine.cache, request.blocks[:NUM_BLOCKS]))


def rows(cache: KVCache, blocks: Sequence[int]) -> tuple[bytes, ...]:
    """The bytes of these blocks."""
    return tuple(cache.as_bytes()[block].numpy().tobytes() for block in blocks)
