"""What one worker computes with. The figures are the makers' peaks; the shares are what real kernels reach of them.

A plan is only as good as the two shares: whoever has measured sets them.
"""

from __future__ import annotations

from dataclasses import dataclass

GB = 10**9
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device, which is one worker's."""

    name: str
    device: str  # as in engine.device
    dtype: str  # that the engine takes there
    memory_gib: float
    tflops: float  # peak, in `dtype`, dense
    memory_gb_s: float  # peak
    link_gb_s: float  # at which KV moves to another worker
    compute_share: float = 0.5  # of the peak, while prompts are computed
    memory_share: float = 0.7  # of the peak, while tokens are generated

    @property
    def operations_s(self) -> float:
        return self.tflops * 1e12 * self.compute_share

    @property
    def memory_bytes_s(self) -> float:
        return self.memory_gb_s * GB * self.memory_share

    @property
    def link_bytes_s(self) -> float:
        return self.link_gb_s * GB

    @property
    def usable_bytes(self) -> float:
        """For weights and KV: a tenth is left to activations, libraries and the process."""
        return 0.9 * self.memory_gib * GIB


HARDWARE = {
    hardware.name: hardware
    for hardware in (
        # Fitted to the default model's step in docs/scheduling.md: 20 ms alone, 250 ms with a chunk of 256.
        Hardware("cpu-core", "cpu", "float32", 3, 0.3, 30, 2, compute_share=0.7, memory_share=0.9),
        Hardware("l4", "cuda", "bfloat16", 24, 121, 300, 5),
        Hardware("l40s", "cuda", "bfloat16", 48, 362, 864, 10),
        Hardware("a100", "cuda", "bfloat16", 80, 312, 2039, 10),
        Hardware("h100", "cuda", "bfloat16", 80, 989, 3350, 20),
        Hardware("h200", "cuda", "bfloat16", 141, 989, 4800, 20),
    )
}
