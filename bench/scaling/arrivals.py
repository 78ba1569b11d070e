"""Requests that arrive at random, at a rate that changes from phase to phase, with lengths that are given.

The same seed gives the same requests at the same times.
"""

from __future__ import annotations

import csv
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

DATA = Path(__file__).parents[1] / "data"
VOCABULARY = 256  # token ids that a prompt is made of


@dataclass(frozen=True, slots=True)
class Lengths:
    prompt_tokens: int
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    seconds: float
    per_s: float  # arrivals, the mean
    lengths: Sequence[Lengths]  # taken in turn


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float  # since the load's start
    phase: str
    prompt: Sequence[int]
    max_tokens: int


def arrivals(phases: Sequence[Phase], seed: int) -> Iterator[Arrival]:
    rng = Random(seed)
    start_s = 0.0
    for phase in phases:
        at_s, number = rng.expovariate(phase.per_s), 0
        while at_s < phase.seconds:
            lengths = phase.lengths[number % len(phase.lengths)]
            prompt = [rng.randrange(VOCABULARY) for _ in range(lengths.prompt_tokens)]
            yield Arrival(start_s + at_s, phase.name, prompt, lengths.generated_tokens)
            at_s += rng.expovariate(phase.per_s)
            number += 1
        start_s += phase.seconds


def azure_lengths(name: str, divisor: int) -> list[Lengths]:
    """Of the trace `conv` or `code`, all divided by this and at least 1."""
    with lzma.open(DATA / f"azure_{name}_2023_lengths.csv.xz", "rt") as lines:
        return [
            Lengths(max(1, int(row["ContextTokens"]) // divisor), max(1, int(row["GeneratedTokens"]) // divisor))
            for row in csv.DictReader(lines)
        ]
