"""`python -m tests.faults --handoffs 10500 --seed 1`: fault injection at its full size; its tables go to stdout.

Ends with status 1 when a text was wrong, a request hung, or something was left over. Rounds are in turn one-sided,
two-sided and pooled; `--round N` repeats one. `--real --handoffs 500` has the real model in real processes, KV over
NIXL, and workers and pool nodes that are stopped and killed.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from deploy.model_store import default_cache_dir, resolve_model
from tests.faults.plan import Kind, Plan, Result
from tests.faults.real import RealRun
from tests.faults.real_plan import RealPlan
from tests.faults.round import run_round
from tests.faults.table import table_of

ROUND_SIZE = 500


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Fault injection into the KV plane.")
    parser.add_argument("--handoffs", type=int, default=10_500, help="requests, a third of them of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="only this one, as when the whole was run")
    parser.add_argument("--rate", type=float, help="share of messages that a fault hits; else as fits the kind")
    parser.add_argument("--threads", action="store_true", help="real threads and the real clock")
    parser.add_argument("--real", action="store_true", help="real processes, the real model, NIXL")
    parser.add_argument("--transport", default="nixl", choices=["nixl", "gloo"], help="of the real processes")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    totals = {f"real, {options.transport}": run_real(options)} if options.real else run_rounds(options)
    for name, total in totals.items():
        print(f"### {name}\n\n{table_of(total)}\n")
    sys.exit(0 if all(total.is_good for total in totals.values()) else 1)


def run_real(options: argparse.Namespace) -> Result:
    model_dir = resolve_model("smollm2-135m-instruct", default_cache_dir(os.environ))
    engine = {"num_blocks": 128}
    with tempfile.TemporaryDirectory(prefix="pdserve-faults-") as logs:
        plan = RealPlan(str(options.seed), options.handoffs, model_dir, Path(logs), engine, transport=options.transport)
        return RealRun(plan).run()


def run_rounds(options: argparse.Namespace) -> Mapping[str, Result]:
    totals: dict[str, Result] = {}
    for number, size, kind in rounds(options.handoffs):
        if options.round not in (None, number):
            continue
        plan = Plan(f"{options.seed}/{number}", size, kind, rate=options.rate, threads=options.threads)
        result = run_round(plan)
        print(f"round {number}, {kind}: {'good' if result.is_good else 'BAD'}, {result.seconds:.1f} s", file=sys.stderr)
        totals.setdefault(kind, Result(plan.faults())).add(result)
    return totals


def rounds(num_handoffs: int) -> Iterator[tuple[int, int, Kind]]:
    """Their numbers and sizes; no kind has more than another by a round."""
    size = min(ROUND_SIZE, -(-num_handoffs // len(Kind)))
    for number, start in enumerate(range(0, num_handoffs, size)):
        yield number, min(size, num_handoffs - start), list(Kind)[number % len(Kind)]


if __name__ == "__main__":
    main()
