"""Which blocks of host memory are taken by the KV of preempted requests. Pure: the memory itself is `HostCache`'s."""

from __future__ import annotations

from collections.abc import Sequence

from engine.block_pool import IntegrityError


class SwapSpace:
    """Maintains: a host block belongs to one preempted request, or to nobody."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, n: int) -> list[int] | None:
        """n blocks, or None when there is no room."""
        if n > len(self._free):
            return None
        return [self._free.pop() for _ in range(n)]

    def release(self, host_blocks: Sequence[int]) -> None:
        self._free += host_blocks

    def check_integrity(self, held: Sequence[int]) -> None:
        """Raises IntegrityError unless each block is free or held, once; `held`: all requests' host blocks."""
        if sorted((*self._free, *held)) != list(range(self.num_blocks)):
            raise IntegrityError("a host block is free and held, held twice, or lost")
