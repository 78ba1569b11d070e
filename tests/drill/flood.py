"""More requests at once than can be served: `python -m tests.drill.flood` prints what clients saw, as a table.

`flood`: 5,000 at once with 10 s of patience, a short queue. `burst`: 1,280 at once that all find a place. `churn`:
20,000 random prompts, 64 at a time, of which a third is left by its client; then nothing. Real processes, fake model.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine.fake_runner import FakeModel
from tests.drill.crowd import Client, Crowd
from tests.drill.impatient import Ask, asks
from tests.drill.small_cluster import small_cluster
from tests.drill.watch import Watch
from tests.integration.processes import Processes

MODEL = FakeModel(seconds_per_step=0.004, seconds_per_token=0.00002)
FLOOD_QUEUE = 64  # requests that may wait: what is served within a client's patience
CHURN_AT_ONCE = 64
LEAVING = 0.34
IDLE_S = 15.0  # after a churn


@dataclass(slots=True)
class Result:
    name: str
    clients: int
    outcomes: Counter[str]
    refusals_s: tuple[float, ...]  # when each came, sorted
    refusals_without_retry_after: int
    watch: Watch
    restarted: int

    def rows(self) -> Iterator[tuple[str, str]]:
        yield "clients", f"{self.clients}"
        yield from ((name, f"{count}") for name, count in sorted(self.outcomes.items()))
        if self.refusals_s:
            middle, late = (self.refusals_s[int(share * len(self.refusals_s))] for share in (0.5, 0.99))
            yield "refused after: p50, p99, max", f"{middle:.2f}, {late:.2f}, {self.refusals_s[-1]:.2f} s"
        yield "slowest answer of /health", f"{self.watch.slowest_health_s:.2f} s"
        yield "most memory", f"{self.watch.most_bytes >> 20} MiB"
        yield "more memory after the first quarter", f"{100 * self.watch.growth_after_a_quarter:.1f} %"
        yield "memory at the end", f"{self.watch.last_bytes >> 20} MiB"
        yield "processes that ended", f"{self.restarted}"


def outcome(client: Client) -> str:
    if client.status == 200 and client.is_whole:
        return "answered"
    if client.status in (429, 503) and client.is_whole:
        return f"refused: {client.status}"
    if client.left:
        return "left by its client" if client.first_byte_s is None else "left within its answer"
    return f"broken: {client.status}"


class Drill:
    """Maintains a prefill worker, a decode worker and a proxy."""

    def __init__(self, processes: Processes, seed: int) -> None:
        self._processes = processes
        self._seed = seed

    def start(self, *arguments: str) -> None:
        self._processes.start_workers()
        self._processes.start_proxy(*arguments)

    def at_once(self, name: str, count: int, patience_s: float) -> Result:
        """All of them in the same moment. Raises AssertionError for a leak."""
        return self._result(name, count, lambda: self._crowd(asks(self._seed, count, patience_s)))

    def churn(self, count: int, idle_s: float) -> Result:
        """One crowd after the other, and then nothing for so long."""
        every = asks(self._seed, count, 60.0, leaving=LEAVING)
        crowds = [every[i : i + CHURN_AT_ONCE] for i in range(0, count, CHURN_AT_ONCE)]
        return self._result(
            "churn", count, lambda: [client for crowd in crowds for client in self._crowd(crowd)], idle_s
        )

    def _result(self, name: str, count: int, run: Callable[[], Sequence[Client]], idle_s: float = 0.0) -> Result:
        with Watch(self._processes.http, self._processes.proxy_pid) as watch:
            clients = run()
            self._processes.wait_idle(60.0)
            threading.Event().wait(idle_s)
        refused = [client for client in clients if outcome(client).startswith("refused")]
        return Result(
            name,
            count,
            Counter(map(outcome, clients)),
            tuple(sorted(client.ended_s or 0.0 for client in refused)),
            sum(client.retry_after_s is None for client in refused),
            watch,
            sum(worker.process.poll() is not None for worker in self._processes.workers),
        )

    def _crowd(self, given: Sequence[Ask]) -> list[Client]:
        host, port = self._processes.http.removeprefix("http://").rsplit(":", 1)
        return Crowd((host, int(port)), given).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="flood | burst | churn", default=["flood", "burst", "churn"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of requests")
    options = parser.parse_args()
    print(f"seed {options.seed}, {sys.platform}")
    for scenario in options.scenarios:
        with small_cluster(MODEL, 2048) as processes:
            drill = Drill(processes, options.seed)
            drill.start(f"--max-queued-requests={FLOOD_QUEUE if scenario == 'flood' else 2048}")
            match scenario:
                case "flood":
                    result = drill.at_once("flood", round(5000 * options.scale), 10.0)
                case "burst":
                    result = drill.at_once("burst", round(1280 * options.scale), 600.0)
                case _:
                    result = drill.churn(round(20_000 * options.scale), IDLE_S)
        print(f"\n| {scenario} | |\n|---|---:|")
        for name, value in result.rows():
            print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
