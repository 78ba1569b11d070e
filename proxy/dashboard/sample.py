"""What happened in the proxy from one look at it to the next, about a second later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from proxy.admission.slo import Slo
from proxy.dashboard.quantile import thinned
from proxy.request.attained import attained
from proxy.request.lifecycle import Lifecycle, Phase
from proxy.request.priority import LABELS

MAX_VALUES = 256  # of a kind that are kept of one sample


class Kind(StrEnum):
    """What is measured in seconds."""

    TTFT = "ttft"  # of interactive requests, as they get their first token
    TTFT_BATCH = "ttft_batch"
    TPOT = "tpot"  # of each stream that spoke, from its first token until now
    QUEUE = "queue"  # of those that went to workers for the first time
    HANDOFF = "handoff"  # from the end of the prompt on P to the first token from D


@dataclass(frozen=True, slots=True)
class Pair:
    """Who hands KV to whom, and how."""

    prefill: str
    decode: str
    transport: str

    @classmethod
    def of(cls, choice: Lifecycle) -> Pair | None:
        """None where the decode worker computes the prompt, or is not chosen yet."""
        route = choice.route
        if route is None or route.prefill_worker is None or route.decode_worker is None:
            return None
        return cls(route.prefill_worker, route.decode_worker, choice.transport or route.path.value)


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters of the whole life of the proxy; a sample holds their growth."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    retries: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.prompt_tokens + other.prompt_tokens,
            self.generated_tokens + other.generated_tokens,
            self.retries + other.retries,
        )

    def __sub__(self, before: Totals) -> Totals:
        return Totals(
            self.prompt_tokens - before.prompt_tokens,
            self.generated_tokens - before.generated_tokens,
            self.retries - before.retries,
        )


@dataclass(frozen=True, slots=True)
class Gauges:
    """As it stands when the sample is taken."""

    num_queued: Mapping[str, int]  # by priority
    num_running: int  # sent to workers


@dataclass(frozen=True, slots=True)
class Sample:
    number: int
    at: float  # its end, Unix seconds
    duration_s: float
    values: Mapping[Kind, tuple[float, ...]]  # in order
    counts: Mapping[str, int]  # of requests that ended: ok, failed, cancelled, refused; of choices: slo_*
    handoffs: Mapping[Pair, int]
    grown: Totals
    gauges: Gauges


class SampleMaker:
    """Maintains what will be the next sample. It looks at each choice when that ends, and at those that still run when
    the sample is made: each first token is seen once."""

    def __init__(self, since: float) -> None:
        self._since = since  # the loop's clock, as all times of choices
        self._values: dict[Kind, list[float]] = {kind: [] for kind in Kind}
        self._handoffs: Counter[Pair] = Counter()
        self._counts: Counter[str] = Counter()

    def count(self, what: str) -> None:
        self._counts[what] += 1

    def count_slo(self, choice: Lifecycle, slo: Slo) -> None:
        """Of a choice that has ended; one that failed or was cancelled has attained nothing."""
        for label in slo.asked:
            self.count(f"slo_{label}_asked")
        for label in attained(choice, slo):
            self.count(f"slo_{label}_attained")

    def look_at(self, choice: Lifecycle) -> None:
        """What it has come to since the last sample."""
        progress, admitted_at = choice.progress, choice.job.admitted_at
        if choice.num_attempts and admitted_at + progress.queue_s > self._since:
            self._values[Kind.QUEUE].append(progress.queue_s)
        if progress.first_token_at is not None and progress.first_token_at > self._since:
            self._look_at_first_token(choice, progress.first_token_at - admitted_at)
        if choice.phase in (Phase.DECODING, Phase.FINISHED) and progress.time_per_output_token_s is not None:
            self._values[Kind.TPOT].append(progress.time_per_output_token_s)

    def _look_at_first_token(self, choice: Lifecycle, ttft_s: float) -> None:
        is_interactive = choice.job.priority.label == LABELS[0]
        self._values[Kind.TTFT if is_interactive else Kind.TTFT_BATCH].append(ttft_s)
        pair = Pair.of(choice)
        if choice.progress.handoff_s is not None and pair is not None:
            self._values[Kind.HANDOFF].append(choice.progress.handoff_s)
            self._handoffs[pair] += 1

    def make(self, number: int, at: float, duration_s: float, grown: Totals, gauges: Gauges) -> Sample:
        values = {kind: thinned(each, MAX_VALUES) for kind, each in self._values.items()}
        return Sample(number, at, duration_s, values, dict(self._counts), dict(self._handoffs), grown, gauges)
