"""How an engine chooses each step's work: the strategy and its knobs, with their established names.

Validated once, at the edge; what depends on the model's context is checked where that is known (`check_context`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

PreemptionMode = Literal["auto", "swap", "recompute"]
StrategyName = Literal["static", "prefill_first", "mixed", "chunked", "decode_first"]


class Joins(Enum):
    """When a waiting prompt may join those that run."""

    ALWAYS = "always"
    BETWEEN_DECODES = "between decodes"  # only while nobody who runs decodes
    BETWEEN_BATCHES = "between batches"  # only when nobody runs: all who do began in the same step


@dataclass(frozen=True, slots=True)
class Strategy:
    """What one strategy does differently; the loop is the same for all."""

    joins: Joins
    whole_prompts: bool  # a prompt is computed in one step
    prompts_alone: bool  # decodes sit out a step that computes prompts


STRATEGIES: dict[StrategyName, Strategy] = {
    "static": Strategy(Joins.BETWEEN_BATCHES, whole_prompts=True, prompts_alone=True),
    "prefill_first": Strategy(Joins.ALWAYS, whole_prompts=True, prompts_alone=True),
    "mixed": Strategy(Joins.ALWAYS, whole_prompts=True, prompts_alone=False),
    "chunked": Strategy(Joins.ALWAYS, whole_prompts=False, prompts_alone=False),
    "decode_first": Strategy(Joins.BETWEEN_DECODES, whole_prompts=False, prompts_alone=False),
}


class SchedulingConfig(BaseModel):
    """Counts are of one step unless said otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: StrategyName = "chunked"
    max_num_batched_tokens: int = Field(512, ge=1)  # the token budget
    max_num_seqs: int = Field(32, ge=1)  # requests that run
    prefill_chunk_size: int = Field(256, ge=1)  # most prompt tokens of one request; the hand-off's chunk too
    max_num_partial_prefills: int = Field(4, ge=1)  # prompts that the step leaves unfinished
    max_long_partial_prefills: int = Field(1, ge=1)  # of them, long ones; no more long ones run
    long_prefill_token_threshold: int = Field(2048, ge=1)  # tokens; a longer prompt is long
    priority_ageing_s: float = Field(2.0, gt=0)  # waiting so long makes up for one level of priority
    preemption: PreemptionMode = "auto"  # auto: the cheaper one, as measured
    num_swap_blocks: int = Field(512, ge=0)  # in host memory; when they are taken, preempted requests are recomputed
    decode_headroom_blocks: int = Field(1, ge=0)  # free blocks asked for beyond a prompt's own before it is admitted
    max_receiving_share: float = Field(0.8, gt=0, le=1)  # of all blocks, at most this share waits for transfers

    @model_validator(mode="after")
    def _consistent(self) -> SchedulingConfig:
        if self.prefill_chunk_size > self.max_num_batched_tokens:
            raise ValueError(
                f"prefill_chunk_size ({self.prefill_chunk_size}) is larger than max_num_batched_tokens "
                f"({self.max_num_batched_tokens}): lower the first or raise the second"
            )
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs ({self.max_num_seqs}) is larger than max_num_batched_tokens "
                f"({self.max_num_batched_tokens}): a step could not hold one token of each"
            )
        if self.max_long_partial_prefills > self.max_num_partial_prefills:
            raise ValueError(
                f"max_long_partial_prefills ({self.max_long_partial_prefills}) is larger than "
                f"max_num_partial_prefills ({self.max_num_partial_prefills}), which counts the long ones too"
            )
        if self.preemption == "swap" and self.num_swap_blocks == 0:
            raise ValueError("preemption swap needs room in host memory: raise num_swap_blocks above 0")
        return self

    def check_context(self, max_model_len: int) -> None:
        """Raises ValueError when a prompt of this model could never be computed under the strategy."""
        strategy = STRATEGIES[self.strategy]
        if not strategy.whole_prompts:
            return
        beside = 0 if strategy.prompts_alone else self.max_num_seqs - 1
        if self.max_num_batched_tokens < max_model_len + beside:
            others = f" beside {beside} decodes" if beside else ""
            raise ValueError(
                f"strategy {self.strategy} computes a prompt in one step{others}: max_num_batched_tokens "
                f"({self.max_num_batched_tokens}) must be at least {max_model_len + beside}, for the context of "
                f"{max_model_len} tokens; raise it, lower max_model_len, or choose strategy chunked"
            )
