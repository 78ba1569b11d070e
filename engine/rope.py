"""Rotary position embedding, as Llama computes it: the two halves of a head turn together, not neighbours.

Angles are made in float32 by transformers' formulas, so that greedy text agrees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Linear scaling by `factor`; with `original_max_len`, Llama 3's, which scales low frequencies only."""

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int | None = None


class RotaryEmbedding:
    """Maintains nothing but the frequencies: a step makes its few angles itself, whatever the model's context."""

    def __init__(self, head_dim: int, theta: float, scaling: RopeScaling | None, device: str = "cpu") -> None:
        self.frequencies: Tensor = scaled_frequencies(head_dim, theta, scaling).to(device)

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine for these positions, each `[num_tokens, 1, head_dim]`: one pair serves all heads."""
        angles = positions.to(torch.float32).unsqueeze(-1) * self.frequencies
        cosine, sine = angles.cos(), angles.sin()
        cosine, sine = torch.cat([cosine, cosine], dim=-1), torch.cat([-sine, sine], dim=-1)
        return cosine.unsqueeze(1).to(dtype), sine.unsqueeze(1).to(dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """`x` `[num_tokens, num_heads, head_dim]`, turned by its positions."""
    return x * cosine + x.roll(x.shape[-1] // 2, dims=-1) * sine


def scaled_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Radians per position for each of the head_dim / 2 pairs."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    frequencies: Tensor = 1.0 / (theta**exponents)
    if scaling is None:
        return frequencies
    if scaling.original_max_len is None:
        return frequencies / scaling.factor
    return _llama3_frequencies(frequencies, scaling, scaling.original_max_len)


def _llama3_frequencies(frequencies: Tensor, scaling: RopeScaling, original_max_len: int) -> Tensor:
    """Short wavelengths stay, long ones are scaled, those between are mixed (Llama 3.1's definition)."""
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    scaled = torch.where(wavelengths > original_max_len / low, frequencies / scaling.factor, frequencies)
    smooth = (original_max_len / wavelengths - low) / (high - low)
    mixed = (1 - smooth) * scaled / scaling.factor + smooth * scaled
    is_between = ~(wavelengths < original_max_len / high) & ~(wavelengths > original_max_len / low)
    return torch.where(is_between, mixed, scaled)
