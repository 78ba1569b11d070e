"""Where a worker is that KV can be taken from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """One incarnation, which is another peer after its next start."""

    incarnation: str
    address: str  # host:port of its gRPC server
