"""What workers and pool nodes say to each other, besides `messages`, as frozen values; `proto/pool.proto` carries them.

A key is a chained block hash (`engine.block_hash`): it binds the tokens and all before them, the model, the KV dtype,
the block size and the salt, so equal keys mean equal KV.
"""

from __future__ import annotations

from dataclasses import dataclass

from kv_transfer.messages import Ticket


@dataclass(frozen=True, slots=True)
class OfferSource:
    """Whose blocks are offered, and under which of its leases."""

    incarnation: str
    address: str  # of its gRPC server, host:port
    ticket: Ticket
