"""Preemption to host memory: whether it is worth it for a request, and what is to be copied where.

Pure; `Engine` does the copying, in the same order and before the step is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from engine.request import Request, RequestKind
from engine.scheduling import PreemptionMode
from engine.swap_space import SwapSpace


class Direction(Enum):
    OUT = "out"  # from the device to the host
    IN = "in"


@dataclass(frozen=True, slots=True)
class Swap:
    direction: Direction
    blocks: tuple[int, ...]  # of the KV cache
    host_blocks: tuple[int, ...]  # their counterparts, in order


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


class Swapping:
    """Maintains `Request.swapped`: the host blocks of a preempted request, until it is back or ended."""

    def __init__(self, mode: PreemptionMode, num_blocks: int, block_size: int) -> None:
        self.space = SwapSpace(num_blocks)
        self.costs = PreemptionCosts()
        self._mode = mode
        self._block_size = block_size

    def take_out(self, victim: Request) -> list[Swap]:
        """What to copy of a request that is about to lose its blocks; nothing when it is to be computed again."""
        n = -(-victim.num_computed // self._block_size)
        if victim.kind is not RequestKind.GENERATE or n == 0 or not self._is_worth_it(n, victim.num_computed):
            return []
        host_blocks = self.space.allocate(n)
        if host_blocks is None:
            return []
        victim.swapped = host_blocks
        return [Swap(Direction.OUT, tuple(victim.blocks[:n]), tuple(host_blocks))]

    def bring_back(self, request: Request, num_hits: int) -> list[Swap]:
        """What to copy into the new blocks of a request: not those that the prefix cache still had."""
        blocks = tuple(request.blocks[num_hits : len(request.swapped)])
        host_blocks = tuple(request.swapped[num_hits:])
        self.drop(request)
        return [Swap(Direction.IN, blocks, host_blocks)] if blocks else []

    def drop(self, request: Request) -> None:
        self.space.release(request.swapped)
        request.swapped = []

    def _is_worth_it(self, num_blocks: int, num_tokens: int) -> bool:
        match self._mode:
            case "swap":
                return True
            case "recompute":
                return False
            case "auto":
                return self.costs.swap_is_cheaper(num_blocks, num_tokens)
