"""Host memory for the KV of preempted requests: which of its blocks are taken, and what is to be copied.

Pure; the scheduler decides here, `Engine` copies, in the same order and before the step is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from engine.block_pool import IntegrityError


class Direction(Enum):
    OUT = "out"  # from the device to the host
    IN = "in"


@dataclass(frozen=True, slots=True)
class Swap:
    direction: Direction
    blocks: tuple[int, ...]  # of the KV cache
    host_blocks: tuple[int, ...]  # their counterparts, in order


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


class PreemptionCosts:
    """What bringing a request back costs, learnt from what was measured: moving averages, in seconds.

    Before anything is measured a swap counts as the cheaper one.
    """

    WEIGHT = 0.2  # of the newest measurement

    def __init__(self) -> None:
        self._token_s = 0.0  # to compute one prompt token
        self._block_s = 0.0  # to copy one block

    def computed(self, num_tokens: int, duration_s: float) -> None:
        self._token_s = self._averaged(self._token_s, duration_s / num_tokens)

    def copied(self, num_blocks: int, duration_s: float) -> None:
        self._block_s = self._averaged(self._block_s, duration_s / num_blocks)

    def swap_is_cheaper(self, num_blocks: int, num_tokens: int) -> bool:
        """Out and back, against computing the same tokens again."""
        return 2 * num_blocks * self._block_s <= num_tokens * self._token_s

    def _averaged(self, average: float, measured: float) -> float:
        return average + self.WEIGHT * (measured - average) if average else measured
