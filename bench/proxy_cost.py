"""What the proxy costs: added time to the first token, CPU for each token, and how many streams it carries.

`python -m bench.proxy_cost` measures it before a worker that speaks at a fixed pace (`bench.paced_worker`).
`--router 'COMMAND with {url} and {port}'` puts another router before the proxy, for what that one adds in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, sleep

import grpc
import httpx

from bench.free_port import free_port
from bench.open_stream import Arrivals, DirectWorker, over_grpc, over_http
from bench.paced_worker import INCARNATION
from bench.table import markdown_table

MODEL = "smollm2-135m-instruct"
MODEL_DIR = Path.home() / ".cache/pdserve/models" / MODEL
STEP_S = 0.05
PROMPT = tuple(range(1000, 1128))
START_S = 60.0
ROUTER_CORE, OTHER_CORE = {0}, {1}
NUM_STREAMS = (1, 64, 128, 192, 256, 384, 512, 768, 1024)
TOKENS_PER_STREAM = 100
CPU_STREAMS = 64  # at a time, where the CPU of a token is measured
Ask = Callable[[int], Awaitable[Arrivals]]  # for so many tokens


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the worker, and the process whose cost it shows: None, where there is nothing between."""

    name: str
    ask: Ask
    pid: int | None


@dataclass(frozen=True, slots=True)
class Crowd:
    """So many streams at a time, and what they saw."""

    num_streams: int
    per_token_s: Sequence[float]  # of each stream, from its first token to its last
    cpu_s: float  # of the process in the way
    seconds: float

    @property
    def num_tokens(self) -> int:
        return self.num_streams * TOKENS_PER_STREAM

    def per_token_ms(self, percent: int) -> float:
        return percentile(self.per_token_s, percent) * 1e3


async def first_tokens(ways: Sequence[Way], num_requests: int) -> dict[str, list[float]]:
    """Seconds to the first token, one request at a time, the ways in turn."""
    found: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(num_requests):
        for way in ways:
            found[way.name].append((await way.ask(1)).first_s)
    return found


async def crowd(way: Way, num_streams: int) -> Crowd:
    """All start within one step, and each is as long."""
    assert way.pid is not None

    async def one(number: int) -> Arrivals:
        await asyncio.sleep(STEP_S * number / num_streams)
        return await way.ask(TOKENS_PER_STREAM)

    started_at, cpu_s = perf_counter(), cpu_seconds(way.pid)
    streams = await asyncio.gather(*(one(number) for number in range(num_streams)))
    seconds, cpu_s = perf_counter() - started_at, cpu_seconds(way.pid) - cpu_s
    return Crowd(num_streams, [stream.per_token_s for stream in streams], cpu_s, seconds)


async def crowds(way: Way) -> list[Crowd]:
    """More and more streams, until their tokens come half as often."""
    found = []
    for num_streams in NUM_STREAMS:
        found.append(await crowd(way, num_streams))
        print(f"{way.name}: {num_streams} streams, p50 {found[-1].per_token_ms(50):.1f} ms", file=sys.stderr)
        if found[-1].per_token_ms(50) >= 2 * found[0].per_token_ms(50):
            break
    return found


async def measure(worker: str, grpc_address: str, proxy_pid: int, urls: dict[str, tuple[str, int]], n: int) -> str:
    """`urls`: a name for each HTTP server that leads to the worker, its URL and its process."""
    async with grpc.aio.insecure_channel(worker) as to_worker, grpc.aio.insecure_channel(grpc_address) as to_proxy:
        direct = DirectWorker(to_worker, INCARNATION)
        await direct.open()
        ways = [
            Way("worker directly", lambda max_tokens: direct.complete(PROMPT, max_tokens), None),
            Way("proxy, gRPC", lambda max_tokens: over_grpc(to_proxy, PROMPT, max_tokens), proxy_pid),
            *(http_way(name, url, pid) for name, (url, pid) in urls.items()),
        ]
        await first_tokens(ways, 20)  # warm
        firsts = await first_tokens(ways, n)
        loads = {way.name: await crowds(way) for way in ways[1:]}
    return report(firsts, loads)


def http_way(name: str, url: str, pid: int) -> Way:
    return Way(name, lambda max_tokens: over_http(url, MODEL, PROMPT, max_tokens), pid)


def report(firsts: dict[str, list[float]], loads: dict[str, list[Crowd]]) -> str:
    base = percentile(firsts["worker directly"], 50)
    first_rows = [
        (
            name,
            *(f"{percentile(values, p) * 1e3:.2f}" for p in (50, 99)),
            f"{(percentile(values, 50) - base) * 1e3:.2f}",
        )
        for name, values in firsts.items()
    ]
    rows = [
        (
            name if load is found[0] else "",
            str(load.num_streams),
            *(f"{load.per_token_ms(p):.1f}" for p in (50, 90)),
            f"{load.num_tokens / load.seconds:.0f}",
            f"{load.cpu_s / load.num_tokens * 1e6:.0f}",
            f"{load.cpu_s / load.seconds:.0%}",
        )
        for name, found in loads.items()
        for load in found
    ]
    first_table = markdown_table(("way", "p50, ms", "p99, ms", "added to p50, ms"), first_rows)
    columns = ("way", "streams", "TPOT p50, ms", "p90, ms", "tokens/s", "CPU for a token, µs", "share of a core")
    return (
        f"## Time to the first token, one request at a time\n\n{first_table}\n"
        f"## Streams of a token each {STEP_S * 1e3:g} ms\n\n{markdown_table(columns, rows)}"
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """The value itself, where there is one only."""
    return values[0] if len(values) == 1 else statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def process(command: Sequence[str], cores: set[int], *, reads: bool = False) -> Iterator[tuple[int, str]]:
    """Its process id, and the first line it printed where `reads`. Ends with the block."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE if reads else sys.stderr, text=True)
    os.sched_setaffinity(child.pid, cores)
    try:
        yield child.pid, child.stdout.readline().strip() if child.stdout else ""
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def wait_until_ready(url: str) -> None:
    deadline = monotonic() + START_S
    while monotonic() < deadline:
        try:
            if httpx.get(url, timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        sleep(0.1)
    raise RuntimeError(f"{url} was not ready within {START_S:g} s")


def run(model_dir: Path, router: str | None, num_requests: int) -> str:
    http, grpc_port, router_port = free_port(), free_port(), free_port()
    os.sched_setaffinity(0, OTHER_CORE)
    with ExitStack() as stack:
        paced = [sys.executable, "-m", "bench.paced_worker", "--step-s", str(STEP_S)]
        _, worker = stack.enter_context(process(paced, OTHER_CORE, reads=True))
        ports = [f"--http-port={http}", f"--grpc-port={grpc_port}"]
        named = [f"--controller={worker}", f"--model-dir={model_dir}", f"--model-name={MODEL}", "--log-level=WARNING"]
        proxy, _ = stack.enter_context(process([sys.executable, "-m", "proxy", *named, *ports], ROUTER_CORE))
        urls = {"proxy, HTTP": (f"http://127.0.0.1:{http}", proxy)}
        wait_until_ready(f"http://127.0.0.1:{http}/ready")
        if router is not None:
            command = shlex.split(router.format(url=f"http://127.0.0.1:{http}", port=router_port))
            pid, _ = stack.enter_context(process(command, ROUTER_CORE))
            urls[f"{Path(command[0]).name} before the proxy"] = (f"http://127.0.0.1:{router_port}", pid)
            wait_until_ready(f"http://127.0.0.1:{router_port}/health")
        return asyncio.run(measure(worker, f"127.0.0.1:{grpc_port}", proxy, urls, num_requests))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-dir", type=Path, default=MODEL_DIR, help="of which the proxy takes the tokenizer")
    parser.add_argument("--router", help="a command with {url} and {port} that starts another router")
    parser.add_argument("--requests", type=int, default=300, help="one at a time, on each way")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    text = run(given.model_dir, given.router, given.requests)
    print(text)
    if given.output is not None:
        given.output.write_text(text)


if __name__ == "__main__":
    main()
