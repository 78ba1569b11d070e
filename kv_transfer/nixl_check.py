"""Whether NIXL moves bytes on this machine: `python -m kv_transfer.nixl_check` reads blocks and compares them.

UCX_TLS and UCX_NET_DEVICES of the environment say over what. It prints how many arrived, as JSON; a process of
its own, since a library that cannot be loaded may end it. Status 1, with the reason, when the bytes do not arrive.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from kv_transfer.block_part import WHOLE
from kv_transfer.nixl_agent import NixlAgent, ReadState
from kv_transfer.transport import TransferFailed

NUM_BLOCKS = 16
BLOCK_BYTES = 1 << 18
TIMEOUT_S = 10.0


def check() -> int:
    """Blocks that one read brought between two agents of this process. Raises TransferFailed."""
    given = torch.randint(0, 256, (NUM_BLOCKS, BLOCK_BYTES), dtype=torch.uint8)
    staging = torch.zeros(1, NUM_BLOCKS * BLOCK_BYTES, dtype=torch.uint8)
    source = NixlAgent("source", given, torch.zeros_like(staging), BLOCK_BYTES, {})
    reader = NixlAgent("reader", torch.zeros_like(given), staging, BLOCK_BYTES, {})
    peer = reader.add_peer("source", source.metadata())
    read = reader.make_read(peer, range(NUM_BLOCKS), WHOLE, 0)
    started_at = time.monotonic()
    state = reader.post(read)
    while state is ReadState.RUNNING and time.monotonic() < started_at + TIMEOUT_S:
        source.progress()
        reader.progress()
        state = reader.state(read)
    seconds = time.monotonic() - started_at
    if state is not ReadState.DONE:
        raise TransferFailed(f"a read was {state.name} after {seconds:.1f} s")
    if not torch.equal(staging.view_as(given), given):
        raise TransferFailed("a read brought other bytes than were there")
    return NUM_BLOCKS


if __name__ == "__main__":
    try:
        print(json.dumps({"blocks": check()}))
    except TransferFailed as error:
        sys.exit(str(error))
