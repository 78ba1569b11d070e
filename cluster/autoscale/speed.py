"""What a pool's workers do per second, measured: differences of their load reports, never a figure from a table.

Pure; one object per pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from rpc import worker_pb2

NUM_SAMPLES = 240  # of single workers; the newest
NUM_RECENT = 24  # of them, for what depends on the prompts that come
FEWEST = 4
FREE_S = 1e-9  # of a token that costs no time at all
LEAST_SPREAD = 0.15  # of step sizes, relative to their mean: with less, no line is put through them


@dataclass(frozen=True, slots=True)
class Sample:
    """One worker's steps between two looks."""

    num_steps: int
    step_s: float
    num_prefill_tokens: int
    num_decode_tokens: int

    @property
    def tokens(self) -> float:
        """Of a step, the mean."""
        return (self.num_prefill_tokens + self.num_decode_tokens) / self.num_steps

    @property
    def seconds(self) -> float:
        """Of a step, the mean."""
        return self.step_s / self.num_steps


class PoolSpeed:
    """Maintains the newest samples, and each incarnation's last report."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=NUM_SAMPLES)
        self._last: dict[str, worker_pb2.Load] = {}  # by incarnation

    def looked(self, loads: Mapping[str, worker_pb2.Load]) -> None:
        """`loads`: of the pool's workers that answered, by incarnation."""
        for incarnation, load in loads.items():
            before = self._last.get(incarnation)
            if before is not None and load.num_steps > before.num_steps:
                self._samples.append(
                    Sample(
                        load.num_steps - before.num_steps,
                        load.step_s - before.step_s,
                        load.num_prefill_tokens - before.num_prefill_tokens,
                        load.num_decode_tokens - before.num_decode_tokens,
                    )
                )
        self._last = dict(loads)

    @property
    def seconds_per_prompt_token(self) -> float | None:
        """Of a pool that computes prompts; None: none was computed yet."""
        recent = [sample for sample in self._samples if sample.num_prefill_tokens][-NUM_RECENT:]
        if not recent:
            return None
        return sum(sample.step_s for sample in recent) / sum(sample.num_prefill_tokens for sample in recent)

    def streams_within(self, step_s: float | None, most: int) -> float | None:
        """How many streams one worker keeps going when each step may take so long, `most` at the most (a limit of its
        own); None: not known yet. `step_s` None: `most`.

        Prompt tokens that the worker computed beside its streams take their share.
        """
        line = self._line()
        if step_s is None or line is None:
            return float(most) if step_s is None else None
        fixed_s, token_s = line
        tokens = (step_s - fixed_s) / token_s
        recent = list(self._samples)[-NUM_RECENT:]
        beside = sum(s.num_prefill_tokens for s in recent) / max(1, sum(s.num_decode_tokens for s in recent))
        return max(1.0, min(float(most), tokens / (1 + beside)))

    def step_s(self, num_streams: float) -> float | None:
        """How long a step of so many streams takes; None: not known yet."""
        line = self._line()
        return None if line is None else line[0] + line[1] * num_streams

    def _line(self) -> tuple[float, float] | None:
        """Seconds of a step without tokens, and of each token: a line through the measured steps. None while they are
        too few or too much alike to tell what more of them would take."""
        if len(self._samples) < FEWEST:
            return None
        tokens = [sample.tokens for sample in self._samples]
        seconds = [sample.seconds for sample in self._samples]
        mean_tokens, mean_s = sum(tokens) / len(tokens), sum(seconds) / len(seconds)
        spread = sum((each - mean_tokens) ** 2 for each in tokens) / len(tokens)
        if spread > (LEAST_SPREAD * mean_tokens) ** 2:
            pairs = zip(tokens, seconds, strict=True)
            slope = sum((t - mean_tokens) * (s - mean_s) for t, s in pairs) / len(tokens) / spread
            fixed_s = max(0.0, mean_s - max(0.0, slope) * mean_tokens)
            return fixed_s, max((mean_s - fixed_s) / mean_tokens, FREE_S)
        return None
