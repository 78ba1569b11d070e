"""One step's work, and who does it: the scheduler makes a `Batch`, a `Runner` computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.request import Request
from engine.sampled_token import SampledToken, SamplingFailure


@dataclass(frozen=True, slots=True)
class Work:
    """Compute `num_tokens` of one request's tokens, from `start` on, and write their KV into `blocks`.

    The request may end while its work is computed; `blocks` stays what it was, and nobody else gets them until then.
    """

    request: Request
    start: int
    num_tokens: int
    sample: bool  # the last of these tokens is the request's last: choose the next one
    blocks: list[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", self.request.blocks)

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a batch, by request id: the next token of each sampled work, and why others failed."""

    sampled: Mapping[str, SampledToken] = field(default_factory=dict)
    unsampled: Mapping[str, str] = field(default_factory=dict)  # computed, but there is no next token, and why
    failed: Mapping[str, str] = field(default_factory=dict)  # not computed, and why
    started_at: float = 0.0  # on the monotonic clock
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerWatch:
    """Who hears, while a batch is computed, in how many layers its KV is written and will not be written again."""

    ends: tuple[int, ...]  # the numbers of layers that are told
    tell: Callable[[int], None]  # called in the model's thread; 0: the batch is computed again, from the first layer on


@dataclass(frozen=True, slots=True)
class Batch:
    works: tuple[Work, ...]
    watch: LayerWatch | None = None

    @property
    def num_tokens(self) -> int:
        return sum(work.num_tokens for work in self.works)

    @property
    def sampled(self) -> list[Work]:
        """The works whose next token is chosen, in the order of `Runner.run`'s answer."""
        return [work for work in self.works if work.sample]


class Runner(Protocol):
    """The model on its device. Two exist: `TorchRunner`, and `FakeRunner` for tests."""

    def run(self, batch: Batch) -> Sequence[SampledToken | SamplingFailure]:
        """One answer for each of `batch.sampled`. The KV of the batch is in the cache when this returns."""
        ...
