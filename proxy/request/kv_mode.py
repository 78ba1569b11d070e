"""How the KV of a prompt gets to the worker that generates."""

from __future__ import annotations

from enum import StrEnum


class KvMode(StrEnum):
    P2P = "p2p"  # a prefill worker hands it to the decode worker
    POOLED = "pooled"  # a prefill worker puts it into the pool, and the decode worker finds it there
    LOCAL = "local"  # the decode worker computes it
