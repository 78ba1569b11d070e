"""`python -m tests.faults --handoffs 10000 --seed 1`: fault injection at its full size; its table goes to stdout.

Ends with status 1 when a text was wrong, a request hung, or something was left over. `--round N` repeats one round;
`--real --handoffs 500` has the real model in real processes, KV over NIXL, and workers that are stopped and killed.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from deploy.model_store import default_cache_dir, resolve_model
from tests.faults.fault import Faults
from tests.faults.real import RealPlan, RealRun
from tests.faults.round import RARE_RATE, RATE, Plan, Result, run_round
from tests.faults.table import table_of

ROUND_SIZE = 500


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Fault injection into hand-offs.")
    parser.add_argument("--handoffs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="only this one, as when the whole was run")
    parser.add_argument("--rate", type=float, default=RATE, help="share of messages that a fault hits")
    parser.add_argument("--threads", action="store_true", help="real engine threads and the real clock")
    parser.add_argument("--real", action="store_true", help="real processes, the real model, NIXL")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.real:
        total: Result = run_real(str(options.seed), options.handoffs)
    else:
        total = run_rounds(options)
    print(table_of(total))
    sys.exit(0 if total.is_good else 1)


def run_real(seed: str, num_handoffs: int) -> Result:
    model_dir = resolve_model("smollm2-135m-instruct", default_cache_dir(os.environ))
    engine = {"num_blocks": 400, "enable_prefix_caching": False}
    with tempfile.TemporaryDirectory(prefix="pdserve-faults-") as logs:
        return RealRun(RealPlan(seed, num_handoffs, model_dir, Path(logs), engine)).run()


def run_rounds(options: argparse.Namespace) -> Result:
    total = Result(Faults(str(options.seed), options.rate, RARE_RATE))
    for number, size in rounds(options.handoffs):
        if options.round not in (None, number):
            continue
        result = run_round(Plan(f"{options.seed}/{number}", size, rate=options.rate, threads=options.threads))
        print(f"round {number}: {'good' if result.is_good else 'BAD'}, {result.seconds:.1f} s", file=sys.stderr)
        total.add(result)
    return total


def rounds(num_handoffs: int) -> Iterator[tuple[int, int]]:
    """Their numbers and sizes."""
    for number, start in enumerate(range(0, num_handoffs, ROUND_SIZE)):
        yield number, min(ROUND_SIZE, num_handoffs - start)


if __name__ == "__main__":
    main()
