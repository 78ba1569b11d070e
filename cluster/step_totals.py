"""What a worker's steps came to since its start, for who compares two reports: written in the engine thread."""

from __future__ import annotations

from dataclasses import dataclass

from engine.engine import StepResult
from rpc import worker_pb2


@dataclass(slots=True)
class StepTotals:
    """Maintains sums over the steps that computed something."""

    num_steps: int = 0
    step_s: float = 0.0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0

    def observe(self, result: StepResult) -> None:
        if not result.num_tokens:
            return
        self.num_steps += 1
        self.step_s += result.duration_s
        self.num_prefill_tokens += result.num_prefill_tokens
        self.num_decode_tokens += result.num_decode_tokens

    def tell(self, load: worker_pb2.Load) -> None:
        """Writes them into a load report."""
        load.num_steps = self.num_steps
        load.step_s = self.step_s
        load.num_prefill_tokens = self.num_prefill_tokens
        load.num_decode_tokens = self.num_decode_tokens
