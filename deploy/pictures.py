"""The pictures of docs/scheduling.md, from real runs of the default model on this machine.

`python -m deploy.pictures --output docs/pictures`: one engine in this process shows static and continuous batching;
then three clusters, one after the other, get the same arrivals under different strategies.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, time

import httpx
from rich.console import Console

from bench.cluster import NAME, cluster
from bench.stream import Stream, complete
from cluster.observe_service import Record, record_messages
from deploy.commands.trace import record
from deploy.model_store import default_cache_dir, resolve_model
from deploy.timeline.picture import Panel, draw
from deploy.timeline.rows import Timeline, timeline
from deploy.trace.cluster_trace import Recording, cluster_trace
from engine.build import build_engine
from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.scheduling import StrategyName
from engine.step_record import step_record
from rpc import observe_pb2, worker_pb2

MODEL = "smollm2-135m-instruct"
EXAMPLES = Path(__file__).parent / "examples"
VOCABULARY = range(97, 123)  # ids that a prompt is made of
BATCH_SIZE = 3
BATCH_LENGTHS = (5, 8, 3, 6, 4)  # tokens that each request generates
BATCH_PROMPT_TOKENS = 32
BATCHING: dict[StrategyName, str] = {
    "static": "static: the next batch begins when the slowest of this one has ended",
    "chunked": "continuous: a place is taken in the very next step after it came free",
}
NUM_READERS = 4
READER_PROMPT_TOKENS = 16
READER_TOKENS = 180
PROMPTS_AT_S = (1.0, 2.5, 4.0)  # after the readers
PROMPT_TOKENS = 1500
PROMPT_ANSWER_TOKENS = 12
INTERFERENCE = {
    "prefill-first": "prefill_first: everybody who reads waits for each new prompt",
    "chunked": "chunked: the same arrivals, each step has decodes and a piece of a prompt",
    "disaggregated": "P + D: the same arrivals, prompts are computed on a worker of their own",
}


def batching(model_dir: Path, strategy: StrategyName) -> Timeline:
    """Five requests that arrive together, on an engine that runs three at a time; by steps."""
    scheduling = {"strategy": strategy, "max_num_seqs": BATCH_SIZE, "max_num_batched_tokens": 512}
    config = EngineConfig.model_validate({"num_blocks": 64, "max_model_len": 256, "scheduling": scheduling})
    engine = build_engine(model_dir, config)
    rng = random.Random(0)
    arrived_at = monotonic()
    for number, length in enumerate(BATCH_LENGTHS, 1):
        prompt = rng.choices(VOCABULARY, k=BATCH_PROMPT_TOKENS)
        engine.add(
            Request(f"{number}: {length} tokens", prompt, len(prompt), SamplingParams(length), arrived_at=arrived_at)
        )
    records: list[Record] = []
    while (one := step_record(engine.step(), engine.load(), monotonic())) is not None:
        records.append(one)
    source = observe_pb2.Source(name=strategy, role=worker_pb2.ROLE_MIXED, unix_at_zero=time() - monotonic())
    return timeline(cluster_trace([Recording(source, list(record_messages(records)))]).events(), by_step=True)


def interference(example: str, console: Console) -> Timeline:
    """Some requests generate while long prompts arrive, on a cluster as in `deploy/examples`."""
    with cluster(EXAMPLES / f"{example}.yaml") as url:
        asyncio.run(_arrivals(url, ("warm-up",), ()))
        started_at = monotonic()
        streams = asyncio.run(_arrivals(url, [f"reader-{n + 1}" for n in range(NUM_READERS)], PROMPTS_AT_S))
        errors = [stream.error for stream in streams if stream.error]
        if errors:
            raise RuntimeError(f"{example}: {errors[0]}")
        return timeline(record(NAME, 0.0, monotonic() - started_at, console).events())


async def _arrivals(url: str, readers: Sequence[str], prompts_at_s: Sequence[float]) -> list[Stream]:
    rng = random.Random(0)
    async with httpx.AsyncClient(timeout=300) as client:

        async def ask(name: str, num_prompt: int, num_tokens: int, after_s: float = 0.0) -> Stream:
            prompt = rng.choices(VOCABULARY, k=num_prompt)
            body = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
            await asyncio.sleep(after_s)
            return await complete(client, url, body, {"x-request-id": name})

        return await asyncio.gather(
            *(ask(name, READER_PROMPT_TOKENS, READER_TOKENS) for name in readers),
            *(
                ask(f"prompt-{number}", PROMPT_TOKENS, PROMPT_ANSWER_TOKENS, after_s)
                for number, after_s in enumerate(prompts_at_s, 1)
            ),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("docs/pictures"), help="a folder; default: %(default)s")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    model_dir = resolve_model(MODEL, default_cache_dir(os.environ))
    panels = [Panel(title, batching(model_dir, strategy)) for strategy, title in BATCHING.items()]
    draw(panels, output / "batching.svg")
    shown = {example: interference(example, console) for example in INTERFERENCE}
    width = max(each.width for each in shown.values())
    for example, title in INTERFERENCE.items():
        draw([Panel(title, shown[example])], output / f"{example}.svg", width)
    for file in sorted(output.glob("*.svg")):
        console.print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
