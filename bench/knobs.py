"""What each scheduling knob does to latency and throughput: one load, one worker, one setting changed at a time.

`python -m bench.knobs --output docs/results/knobs.md` starts a cluster for each row; the first row comes again last, so
that the table shows its own noise.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import httpx

from bench.cluster import cluster
from bench.stream import Stream, complete

EXAMPLES = Path("deploy/examples")
SCHEDULING = "cluster.engine.scheduling."
NUM_REQUESTS = 40
REQUESTS_PER_S = 1.6
PROMPT_TOKENS = (24, 1500)  # log-uniform between these
ANSWER_TOKENS = (16, 96)  # uniform
SHARED_TOKENS = 16  # that every prompt begins with
VOCABULARY = (1000, 40_000)


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    config: str = "chunked"
    settings: Mapping[str, object] = field(default_factory=dict)


def knob(name: str, value: object) -> Row:
    return Row(f"{name} {value}", settings={f"{SCHEDULING}{name}": value})


DEFAULT = Row("chunked, as configured")
TIGHT = {"cluster.engine.num_blocks": 200}
ROWS = (
    DEFAULT,
    Row("strategy static", "static"),
    Row("strategy prefill_first", "prefill-first"),
    Row("strategy mixed", "mixed"),
    Row("strategy decode_first", "decode-first"),
    Row("prefill and decode apart", "disaggregated"),
    knob("prefill_chunk_size", 64),
    knob("prefill_chunk_size", 512),
    Row("max_num_batched_tokens 128", settings={
        f"{SCHEDULING}max_num_batched_tokens": 128, f"{SCHEDULING}prefill_chunk_size": 128}),
    Row("max_num_batched_tokens 2048, chunk 1024", settings={
        f"{SCHEDULING}max_num_batched_tokens": 2048, f"{SCHEDULING}prefill_chunk_size": 1024}),
    knob("max_num_seqs", 4),
    knob("max_num_partial_prefills", 1),
    Row("long_prefill_token_threshold 512", settings={f"{SCHEDULING}long_prefill_token_threshold": 512}),
    Row("200 blocks, preemption swap", settings={**TIGHT, f"{SCHEDULING}preemption": "swap"}),
    Row("200 blocks, preemption recompute", settings={**TIGHT, f"{SCHEDULING}preemption": "recompute"}),
    Row("200 blocks, preemption auto", settings=TIGHT),
    Row("chunked, once more"),
)  # fmt: skip
HEADINGS = ("", "TTFT p50, s", "p90", "TPOT p50, ms", "p90", "output tokens/s", "all, s")


async def measure(url: str, seed: int) -> tuple[str, ...]:
    rng = random.Random(seed)
    shared = [rng.randrange(*VOCABULARY) for _ in range(SHARED_TOKENS)]
    async with httpx.AsyncClient(timeout=600) as client:

        async def ask(num_tokens: int, max_tokens: int, after_s: float) -> Stream:
            prompt = shared + [rng.randrange(*VOCABULARY) for _ in range(num_tokens - SHARED_TOKENS)]
            await asyncio.sleep(after_s)
            body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
            return await complete(client, url, body)

        await ask(24, 4, 0.0)
        begin = perf_counter()
        at_s = 0.0
        asked = []
        for _ in range(NUM_REQUESTS):
            at_s += rng.expovariate(REQUESTS_PER_S)
            num_tokens = round(math.exp(rng.uniform(*map(math.log, PROMPT_TOKENS))))
            asked.append(asyncio.create_task(ask(num_tokens, rng.randint(*ANSWER_TOKENS), at_s)))
        streams = await asyncio.gather(*asked)
        seconds = perf_counter() - begin
    for stream in streams:
        if stream.error:
            raise RuntimeError(stream.error)
    first = [stream.time_to_first_token_s for stream in streams]
    each = [1e3 * stream.time_per_output_token_s for stream in streams]
    rate = sum(stream.num_tokens for stream in streams) / seconds
    cuts = (f"{percentile(first, 50):.2f}", f"{percentile(first, 90):.2f}")
    return (*cuts, f"{percentile(each, 50):.0f}", f"{percentile(each, 90):.0f}", f"{rate:.1f}", f"{seconds:.0f}")


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, help="a Markdown file")
    parser.add_argument("--only", default="", help="rows whose label contains this")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    lines = [HEADINGS, ("---",) + ("---:",) * (len(HEADINGS) - 1)]
    for row in ROWS:
        if given.only in row.label:
            with cluster(EXAMPLES / f"{row.config}.yaml", row.settings) as url:
                lines.append((row.label, *asyncio.run(measure(url, given.seed))))
            print(" | ".join(lines[-1]), flush=True)
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))


if __name__ == "__main__":
    main()
