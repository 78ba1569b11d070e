"""What the clients of the drills ask: random prompts, by tenants, each with the patience of its client. Seeded."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Ask:
    body: dict[str, Any]
    patience_s: float
    headers: Mapping[str, str] = field(default_factory=dict)


def asks(seed: int, count: int, patience_s: float, *, leaving: float = 0.0, longest_s: float = 0.3) -> list[Ask]:
    """`leaving`: the share of clients that leave at a random moment, after `longest_s` at most."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        length = rng.choice([8, 30, 100, 300])
        prompt = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=length))
        body = {"prompt": prompt, "max_tokens": rng.choice([1, 4, 12]), "temperature": 0, "stream": True}
        is_leaving = rng.random() < leaving
        made.append(Ask(body, rng.uniform(0.001, longest_s) if is_leaving else patience_s))
    return made
