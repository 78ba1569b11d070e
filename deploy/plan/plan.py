"""How many prefill and decode workers a load needs: arithmetic from model, hardware and traffic, nothing measured.

Requests come independently of each other and are alike; real traffic is not, so the busiest hour's figures belong here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from deploy.errors import CommandError
from deploy.plan.hardware import GIB, Hardware
from deploy.plan.model_size import ModelSize

MOST_WORKERS = 4096
MOST_SEQUENCES = 512
BUSY = 0.7  # share of its time that a prefill worker may compute
FULL = 0.8  # share of its places that a decode worker may have taken, so that bursts find some


class PlanError(CommandError):
    """No number of workers does it; the message says what is in the way, and what to change."""


@dataclass(frozen=True, slots=True)
class Traffic:
    requests_s: float
    prompt_tokens: int
    output_tokens: int
    cached_share: float  # of a prompt, found in a prefix cache
    ttft_s: float  # hoped for, as the next
    tpot_s: float

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def cached_tokens(self) -> int:
        return int(self.prompt_tokens * self.cached_share)

    @property
    def context(self) -> int:
        """Of a request that is half done."""
        return self.prompt_tokens + self.output_tokens // 2


@dataclass(frozen=True, slots=True)
class Plan:
    """All that was computed on the way; times in seconds."""

    block_bytes: int
    num_blocks: int  # that fit one worker
    prompt_s: float  # one prompt on one prefill worker
    transfer_s: float  # of its KV; all but the last chunk's is hidden behind the prompt
    last_chunk_s: float
    num_prefill: int
    prefill_busy: float  # share of its time
    wait_s: float  # for a prefill worker, in the mean
    ttft_s: float
    most_by_tpot: int  # requests in a step that is still quick enough
    most_by_memory: int  # requests whose KV fits
    num_decode: int
    num_running: int  # in each decode worker
    step_s: float

    @property
    def max_num_seqs(self) -> int:
        return min(self.most_by_tpot, self.most_by_memory, MOST_SEQUENCES)


def make_plan(model: ModelSize, hardware: Hardware, traffic: Traffic, block_size: int, chunk: int) -> Plan:
    """`chunk`: tokens that a hand-off moves at a time, the engine's prefill_chunk_size. Raises PlanError."""
    if traffic.tokens > model.max_model_len:
        raise PlanError(
            f"a request of {traffic.tokens} tokens is longer than the model's context of {model.max_model_len}: "
            "lower --prompt-tokens or --output-tokens"
        )
    block_bytes = block_size * model.kv_bytes
    num_blocks = max(0, math.floor((hardware.usable_bytes - model.weight_bytes) / block_bytes))
    most_by_memory = num_blocks // math.ceil(traffic.tokens / block_size)
    if most_by_memory < 1:
        raise PlanError(
            f"weights of {model.weight_bytes / GIB:.2f} GiB and the KV of one request do not fit in "
            f"{hardware.usable_bytes / GIB:.2f} GiB (0.9 of a worker's memory): set --memory-gib, or a smaller model"
        )
    prompt_s = model.prompt_operations(traffic.prompt_tokens, traffic.cached_tokens) / hardware.operations_s
    last_chunk_s = min(chunk, traffic.prompt_tokens) * model.kv_bytes / hardware.link_bytes_s
    most_by_tpot = _most_by_tpot(model, hardware, traffic)
    num_decode, num_running = _decode(model, hardware, traffic, min(most_by_tpot, most_by_memory, MOST_SEQUENCES))
    step_s = _step_s(model, hardware, num_running, traffic.context)
    num_prefill, wait_s = _prefill(traffic, prompt_s, last_chunk_s + step_s)
    return Plan(
        block_bytes=block_bytes,
        num_blocks=num_blocks,
        prompt_s=prompt_s,
        transfer_s=traffic.prompt_tokens * model.kv_bytes / hardware.link_bytes_s,
        last_chunk_s=last_chunk_s,
        num_prefill=num_prefill,
        prefill_busy=traffic.requests_s * prompt_s / num_prefill,
        wait_s=wait_s,
        ttft_s=wait_s + prompt_s + last_chunk_s + step_s,
        most_by_tpot=most_by_tpot,
        most_by_memory=most_by_memory,
        num_decode=num_decode,
        num_running=num_running,
        step_s=step_s,
    )


def _prefill(traffic: Traffic, prompt_s: float, after_s: float) -> tuple[int, float]:
    """The fewest prefill workers, and the mean wait for one: a queue of equal jobs that come at random (M/D/1)."""
    if prompt_s + after_s > traffic.ttft_s:
        raise PlanError(
            f"one prompt takes {prompt_s:.3g} s, and {after_s:.3g} s pass until its first token, on an idle cluster: "
            f"no number of workers meets --ttft {traffic.ttft_s:g}; raise it, or take faster hardware"
        )
    for num_workers in range(1, MOST_WORKERS + 1):
        busy = traffic.requests_s * prompt_s / num_workers
        if busy > BUSY:
            continue
        wait_s = busy * prompt_s / (2 * (1 - busy))
        if wait_s + prompt_s + after_s <= traffic.ttft_s:
            return num_workers, wait_s
    raise PlanError(f"more than {MOST_WORKERS} prefill workers would be needed: lower --rate")


def _decode(model: ModelSize, hardware: Hardware, traffic: Traffic, most: int) -> tuple[int, int]:
    """The fewest decode workers whose steps bring all tokens that are asked for, and how many requests run in each."""
    tokens_s = traffic.requests_s * traffic.output_tokens
    places = max(1, math.floor(FULL * most))
    for num_workers in range(1, MOST_WORKERS + 1):
        for running in range(1, places + 1):
            if running / _step_s(model, hardware, running, traffic.context) >= tokens_s / num_workers:
                return num_workers, running
    raise PlanError(f"more than {MOST_WORKERS} decode workers would be needed: lower --rate")


def _most_by_tpot(model: ModelSize, hardware: Hardware, traffic: Traffic) -> int:
    quick = [
        running
        for running in range(1, MOST_SEQUENCES + 1)
        if _step_s(model, hardware, running, traffic.context) <= traffic.tpot_s
    ]
    if not quick:
        alone_s = _step_s(model, hardware, 1, traffic.context)
        raise PlanError(
            f"a token takes {alone_s:.3g} s even for one request alone: no number of workers meets "
            f"--tpot {traffic.tpot_s:g}; raise it, or take hardware with quicker memory"
        )
    return quick[-1]


def _step_s(model: ModelSize, hardware: Hardware, num_requests: int, context: int) -> float:
    """Bound by reading memory or by computing, whichever is slower."""
    reading_s = model.step_bytes(num_requests, context) / hardware.memory_bytes_s
    return max(reading_s, num_requests * model.token_operations(context) / hardware.operations_s)
