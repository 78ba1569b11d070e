"""What arriving prompts do to those who already read: the same load against one worker, strategy by strategy, and P+D.

`python -m bench.interference --output docs/results` starts each cluster, measures, and writes a table and a picture.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import httpx

from bench.cluster import cluster
from bench.stream import Stream, complete

EXAMPLES = Path("deploy/examples")
CONFIGURATIONS = ("prefill-first", "mixed", "chunked", "decode-first", "disaggregated")
NUM_READERS = 4
READER_TOKENS = 700
FIRST_PROMPT_AFTER_S = 3.0
NUM_PROMPTS = 5
PROMPT_EVERY_S = 4.0
PROMPT_TOKENS = 2000
PROMPT_ANSWER_TOKENS = 8
VOCABULARY = (1000, 40_000)  # ids that a random prompt is made of


@dataclass(frozen=True, slots=True)
class Measurement:
    name: str
    started_at: float  # when the readers began
    readers: Sequence[Stream]
    prompts: Sequence[Stream]

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """The readers' tokens from the first long prompt to the last one's answer: seconds since the start, and gap."""
        begin = self.prompts[0].sent_at
        end = max(prompt.token_times[-1] for prompt in self.prompts)
        gaps = [gap for reader in self.readers for gap in reader.gaps]
        return sorted((at - self.started_at, gap) for at, gap in gaps if begin <= at <= end)

    @property
    def row(self) -> tuple[str, ...]:
        gaps_ms = sorted(1e3 * gap for _, gap in self.gaps)
        first_tokens = [prompt.time_to_first_token_s for prompt in self.prompts]
        cuts = statistics.quantiles(gaps_ms, n=100, method="inclusive")
        return (
            self.name,
            *(f"{value:.0f}" for value in (cuts[49], cuts[98], gaps_ms[-1])),
            *(f"{value:.2f}" for value in (statistics.median(first_tokens), max(first_tokens))),
        )


HEADINGS = ("", "gap p50, ms", "gap p99, ms", "longest, ms", "long prompts' TTFT p50, s", "longest, s")


async def measure(name: str, url: str, seed: int) -> Measurement:
    rng = random.Random(seed)
    async with httpx.AsyncClient(timeout=300) as client:

        async def ask(num_tokens: int, max_tokens: int, after_s: float) -> Stream:
            await asyncio.sleep(after_s)
            prompt = [rng.randrange(*VOCABULARY) for _ in range(num_tokens)]
            body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
            return await complete(client, url, body)

        await ask(16, 4, 0.0)  # connections and caches are warm
        started_at = perf_counter()
        readers = [asyncio.create_task(ask(16, READER_TOKENS, 0.0)) for _ in range(NUM_READERS)]
        prompts = await asyncio.gather(
            *(
                ask(PROMPT_TOKENS, PROMPT_ANSWER_TOKENS, FIRST_PROMPT_AFTER_S + n * PROMPT_EVERY_S)
                for n in range(NUM_PROMPTS)
            )
        )
        streams = await asyncio.gather(*readers)
    for stream in (*streams, *prompts):
        if stream.error:
            raise RuntimeError(f"{name}: {stream.error}")
    return Measurement(name, started_at, streams, prompts)


def table(measurements: Sequence[Measurement]) -> str:
    """Markdown."""
    lines = [HEADINGS, ("---",) + ("---:",) * (len(HEADINGS) - 1), *(m.row for m in measurements)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def draw(measurements: Sequence[Measurement], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(measurements), 1, figsize=(8, 1.6 * len(measurements)), sharex=True, sharey=True)
    for axis, measurement in zip(axes, measurements, strict=True):
        times, gaps = zip(*measurement.gaps, strict=True)
        axis.plot(times, [1e3 * gap for gap in gaps], ".", markersize=2, color="#1f4e79")
        for prompt in measurement.prompts:
            axis.axvline(prompt.sent_at - measurement.started_at, color="#c55a11", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_title(measurement.name, loc="left", fontsize=9)
        axis.grid(visible=True, linewidth=0.3)
    axes[len(axes) // 2].set_ylabel("milliseconds since the token before (log)")
    axes[-1].set_xlabel(f"seconds; a line where a prompt of {PROMPT_TOKENS} tokens arrives")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("configurations", nargs="*", default=CONFIGURATIONS, help="names of files in deploy/examples")
    parser.add_argument("--output", type=Path, help="folder for interference.md and interference.png")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    measurements = []
    for name in given.configurations:
        with cluster(EXAMPLES / f"{name}.yaml") as url:
            measurements.append(asyncio.run(measure(name, url, given.seed)))
        print(" | ".join(measurements[-1].row), flush=True)
    text = table(measurements)
    print(text)
    if given.output is not None:
        given.output.mkdir(parents=True, exist_ok=True)
        (given.output / "interference.md").write_text(text)
        draw(measurements, given.output / "interference.png")


if __name__ == "__main__":
    main()
