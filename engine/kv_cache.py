"""The paged KV cache: one tensor, block-major, so that one contiguous piece of memory is one block of all layers.

Shape `[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]`; index 2 is K (0) or V (1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
GIB = 1 << 30
MEMORY_FILE = Path("/proc/meminfo")  # proc(5)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What two workers must share to read each other's blocks."""

    num_layers: int
    num_kv_heads: int
    block_size: int  # tokens
    head_dim: int
    dtype: str  # a key of DTYPES

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.num_layers, 2, self.num_kv_heads, self.block_size, self.head_dim)

    @property
    def block_bytes(self) -> int:
        size = DTYPES[self.dtype].itemsize
        for n in self.shape:
            size *= n
        return size


class KVCache:
    """Owns the tensor. Which block belongs to whom is `BlockPool`'s to say."""

    def __init__(self, layout: KVLayout, num_blocks: int, device: str = "cpu") -> None:
        """Raises MemoryError."""
        self.layout = layout
        self.num_blocks = num_blocks
        self.tensor: Tensor = _zeros(layout, num_blocks, device)

    @property
    def block_bytes(self) -> int:
        return self.layout.block_bytes

    def as_bytes(self) -> Tensor:
        """The same memory as uint8, `[num_blocks, block_bytes]`."""
        return self.tensor.view(self.num_blocks, -1).view(torch.uint8)

    def write_blocks(self, blocks: Sequence[int], payload: Tensor, start: int = 0) -> None:
        """Copies `payload`, uint8 `[len(blocks), n]`, into these blocks, into their bytes `[start, start + n)`."""
        rows = self.as_bytes()[:, start : start + payload.shape[1]]
        for block, row in zip(blocks, payload, strict=True):  # plain copies: ten times as fast as indexing by bytes
            rows[block].copy_(row)


def _zeros(layout: KVLayout, num_blocks: int, device: str) -> Tensor:
    try:
        return torch.zeros((num_blocks, *layout.shape), dtype=DTYPES[layout.dtype], device=device)
    except RuntimeError as error:  # torch's own for a CPU, a subclass of it for a GPU
        if "allocate" not in str(error):
            raise
        free = torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else _free_bytes()
        raise MemoryError(
            f"num_blocks ({num_blocks}) needs {num_blocks * layout.block_bytes / GIB:.1f} GiB of KV cache on {device}, "
            f"{layout.block_bytes / 1024:g} KiB a block, and {free / GIB:.1f} GiB are free: lower it"
        ) from error


def _free_bytes() -> int:
    """Of the machine's memory, as the system estimates it."""
    for line in MEMORY_FILE.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
