"""A load of streamed completions against an OpenAI endpoint, and what clients then saw.

`python -m bench.load --requests 64 --concurrency 8`; `--url` takes any server that has `/v1/completions`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from rich.console import Console
from rich.table import Table

from bench.stream import Stream, complete

WORDS = (
    "river",
    "engine",
    "copper",
    "window",
    "seven",
    "garden",
    "letter",
    "north",
    "paper",
    "quiet",
    "stone",
    "yellow",
)


@dataclass(frozen=True, slots=True)
class Load:
    url: str
    model: str
    num_requests: int
    concurrency: int
    prompt_words: int
    max_tokens: int
    seed: int
    priority: str | None  # interactive | batch; None: not said, for servers that do not know the header


async def run(load: Load) -> tuple[list[Stream], float]:
    """All answers, and the seconds they took together. At most `concurrency` requests are open at a time."""
    rng = random.Random(load.seed)
    prompts = [" ".join(rng.choices(WORDS, k=load.prompt_words)) for _ in range(load.num_requests)]
    headers = {} if load.priority is None else {"x-priority": load.priority}
    gate = asyncio.Semaphore(load.concurrency)
    limits = httpx.Limits(max_connections=load.concurrency)
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:

        async def ask(prompt: str) -> Stream:
            body = {"model": load.model, "prompt": prompt, "max_tokens": load.max_tokens, "temperature": 0}
            async with gate:
                return await complete(client, load.url, body, headers)

        started_at = time.perf_counter()
        answers = await asyncio.gather(*(ask(prompt) for prompt in prompts))
    return answers, time.perf_counter() - started_at


def show(answers: Sequence[Stream], seconds: float) -> None:
    good = [answer for answer in answers if not answer.error]
    table = Table(title=f"{len(good)} of {len(answers)} requests in {seconds:.1f} s")
    for column in ("", "p50", "p90", "p99"):
        table.add_column(column, justify="right")
    for name, values in (
        ("time to first token, ms", [a.time_to_first_token_s * 1e3 for a in good]),
        ("time per output token, ms", [a.time_per_output_token_s * 1e3 for a in good if a.num_tokens > 1]),
    ):
        if len(values) > 1:
            cuts = statistics.quantiles(values, n=100, method="inclusive")
            table.add_row(name, *(f"{cuts[p - 1]:.1f}" for p in (50, 90, 99)))
    console = Console()
    console.print(table)
    console.print(
        f"{sum(a.num_tokens for a in good) / seconds:.1f} output tokens/s, {len(good) / seconds:.2f} requests/s"
    )
    for answer in answers:
        if answer.error:
            console.print(f"failed: {answer.error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--prompt-words", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--priority", choices=["interactive", "batch"], help="the header x-priority")
    given = parser.parse_args()
    load = Load(
        given.url,
        given.model,
        given.requests,
        given.concurrency,
        given.prompt_words,
        given.max_tokens,
        given.seed,
        given.priority,
    )
    show(*asyncio.run(run(load)))


if __name__ == "__main__":
    main()
