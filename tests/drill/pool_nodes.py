"""One of two pool nodes is stopped, continued, killed and started again empty, while both evict all the time.

`python -m tests.drill.pool_nodes --seconds 60` prints what requests noticed of it, as a table. Every text is checked.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from engine.fake_runner import FakeModel, FakeRunner
from tests.drill.small_cluster import small_cluster
from tests.integration.processes import Processes, WorkerProcess

MODEL = FakeModel(seconds_per_step=0.004, seconds_per_token=0.0001)
BLOCK, PROMPT_BLOCKS, NUM_PROMPTS = 16, 20, 12
NODE_BLOCKS = 60  # half of the prompts' blocks fit in both together
WORKER_BLOCKS = 96  # of a worker's own cache, which few prompts fit in
NUM_TOKENS = 6
AT_ONCE = 2
LEAST = 6  # requests one after the other in a phase, however slow the machine is


@dataclass(frozen=True, slots=True)
class Phase:
    """What was seen while one thing was done to a node."""

    name: str
    first_token_s: tuple[float, ...]  # of each request, sorted
    num_hits: float  # of the nodes that answer
    num_misses: float
    num_evictions: float

    def row(self, baseline: Phase) -> str:
        ratio = self.quantile(0.99) / baseline.quantile(0.99)
        times = " | ".join(f"{1e3 * self.quantile(share):.0f}" for share in (0.5, 0.99, 1.0))
        counts = f"{self.num_hits:.0f} | {self.num_misses:.0f} | {self.num_evictions:.0f}"
        return f"| {self.name} | {len(self.first_token_s)} | {times} | {ratio:.2f} | {counts} |"

    def quantile(self, share: float) -> float:
        return self.first_token_s[min(int(len(self.first_token_s) * share), len(self.first_token_s) - 1)]


class Drill:
    """Maintains two prefill workers, a decode worker, two small pool nodes and a proxy."""

    def __init__(self, processes: Processes, seed: int) -> None:
        self._processes = processes
        self._seed = seed
        self._silent: WorkerProcess | None = None
        self._prompts = [
            random.Random(f"{seed}/{n}").choices(range(97, 123), k=PROMPT_BLOCKS * BLOCK + 5)
            for n in range(NUM_PROMPTS)
        ]

    def run(self, seconds: float) -> list[Phase]:
        """Each phase takes a part of it, the stopped node most. Raises AssertionError for a wrong text, or a leak."""
        ram_bytes = NODE_BLOCKS * MODEL.layout(BLOCK).block_bytes
        processes = self._processes
        processes.start_workers(prefill=2, decode=1)
        for _ in range(2):
            processes.start_pool_node(ram_bytes=ram_bytes)
        processes.start_proxy("--kv-mode=pooled")
        self._phase("warm", seconds / 10)
        phases = [self._phase("both nodes", seconds / 3)]
        node = processes.pool_nodes[0]
        node.signal(signal.SIGSTOP)
        self._silent = node
        phases.append(self._phase("one stopped", seconds))
        self._silent = None
        node.signal(signal.SIGCONT)
        phases.append(self._phase("continued", seconds / 6))
        processes.end_pool_node(node)
        phases.append(self._phase("killed", seconds / 6))
        processes.start_pool_node(node.name, ram_bytes=ram_bytes)
        phases.append(self._phase("back, empty", seconds / 3))
        processes.wait_idle()
        return phases

    def _phase(self, name: str, seconds: float) -> Phase:
        before = self._counts()
        ends_at = time.monotonic() + seconds
        with ThreadPoolExecutor(AT_ONCE) as threads:
            asking = [threads.submit(self._ask_until, ends_at, f"{self._seed}/{name}/{n}") for n in range(AT_ONCE)]
            times = sorted(first_s for asked in asking for first_s in asked.result())
        after = self._counts()
        nodes = after.keys() & before.keys()
        counts = [sum(after[node][i] - before[node][i] for node in nodes) for i in range(3)]
        return Phase(name, tuple(times), *counts)

    def _ask_until(self, ends_at: float, seed: str) -> list[float]:
        rng = random.Random(seed)
        times: list[float] = []
        while time.monotonic() < ends_at or len(times) < LEAST:
            times.append(self._ask(rng.choice(self._prompts)))
        return times

    def _ask(self, prompt: list[int]) -> float:
        """Seconds to the first token."""
        started_at, seen_at = time.monotonic(), []
        ids, _ = self._processes.generate(prompt, NUM_TOKENS, on_first_token=lambda: seen_at.append(time.monotonic()))
        assert ids == FakeRunner.expected(prompt, NUM_TOKENS), prompt
        return seen_at[0] - started_at

    def _counts(self) -> dict[str, tuple[float, float, float]]:
        """Hits, misses and evictions of each incarnation that answers."""
        names = ("pdserve_pool_hits_total", "pdserve_pool_misses_total", "pdserve_pool_evictions_total")
        hits, misses, evictions = names
        return {
            str(node.addresses["incarnation"]): (node.metric(hits), node.metric(misses), node.metric(evictions))
            for node in self._processes.pool_nodes
            if node is not self._silent
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long the node is stopped; others are parts of it"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with small_cluster(MODEL, WORKER_BLOCKS) as processes:
        phases = Drill(processes, options.seed).run(options.seconds)
    print(f"seed {options.seed}, {sys.platform}; time to the first token in ms; counts of the nodes that answer")
    print("| | requests | p50 | p99 | max | p99 ratio | hits | misses | evictions |")
    print("|---|---|---|---|---|---|---|---|---|")
    for phase in phases:
        print(phase.row(phases[0]))


if __name__ == "__main__":
    main()
