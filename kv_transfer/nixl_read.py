"""What `NixlTransport` knows of a peer that it can read from, and of one read, until that read is over.

Both belong to the transport's thread.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from kv_transfer.block_part import BlockPart
from kv_transfer.inbox import Command
from kv_transfer.nixl_agent import RemoteBlocks
from kv_transfer.transport import TransferFailed


@dataclass(slots=True, eq=False)
class Connection:
    """One peer that can be read from. Once forgotten it goes with its last read; who connects again waits for that."""

    blocks: RemoteBlocks
    num_reads: int = 0  # that wait or run
    forgotten: bool = False
    again: list[Command] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Read:
    """Waits to be posted until `handle` is there; then it is, or may be, on its way. `error`: posting it failed."""

    connection: Connection
    blocks: tuple[int, ...]
    part: BlockPart
    slot: int
    future: Future[None]
    order: float
    handle: Any = None
    started_at: float = 0.0
    error: TransferFailed | None = None
