"""`pdserve drill autoscale` and `pdserve drill shift`: clusters of the fake model, whose steps take real time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from bench.fake_model import write_fake_model
from bench.scaling.arrivals import Lengths, Phase, azure_lengths
from bench.scaling.picture import draw
from bench.scaling.report import HEADINGS, markdown, rows, said
from bench.scaling.run import Goal, Outcome, run
from bench.scaling.verdict import shift_faults, step_faults
from deploy.config import DEFAULT_FILE
from deploy.errors import CommandError
from engine.fake_runner import FakeModel

STEP_GOAL = Goal(ttft_s=2.0, tpot_s=0.1)
STEP_MODEL = FakeModel(seconds_per_step=0.03, seconds_per_token=0.001)
STEP_LENGTHS = (Lengths(prompt_tokens=200, generated_tokens=45),)
STEP_PER_S = 6.2  # keeps two workers of each role 70 % busy
STEP_UP = 1.8
SHIFT_GOAL = Goal(ttft_s=2.5, tpot_s=0.1)
SHIFT_MODEL = FakeModel(seconds_per_step=0.06, seconds_per_token=0.0005)
SHIFT_PER_S = 3.5
AZURE_DIVISOR = 4  # of the trace's lengths


def load_step(phase_s: float, seed: int, output: Path | None) -> None:
    """Raises CommandError when anything was not as it should be."""
    phases = [
        Phase("70 % of two", phase_s, STEP_PER_S, STEP_LENGTHS),
        Phase("step up", phase_s, STEP_PER_S * STEP_UP, STEP_LENGTHS),
        Phase("step down", phase_s, STEP_PER_S, STEP_LENGTHS),
    ]
    settings = {
        **_settings(STEP_GOAL, prefill=2, decode=2, max_streams=8),
        "cluster.autoscale.prefill.max": 5,
        "cluster.autoscale.decode.max": 5,
    }
    outcome = _run("load step", "autoscale", STEP_MODEL, settings, phases, STEP_GOAL, seed)
    text = (
        f"Requests of {STEP_LENGTHS[0].prompt_tokens} + {STEP_LENGTHS[0].generated_tokens} tokens arrive at random, "
        f"{STEP_PER_S:g} per second, {STEP_PER_S * STEP_UP:.1f}, and {STEP_PER_S:g} again, {phase_s:g} s each."
    )
    _finish("A step of the load, up and down", text, [outcome], list(step_faults(outcome)), output, "autoscale.svg")


def shift(before_s: float, after_s: float, seed: int, output: Path | None) -> None:
    """Raises CommandError when anything was not as it should be."""
    phases = [
        Phase("conv", before_s, SHIFT_PER_S, azure_lengths("conv", AZURE_DIVISOR)),
        Phase("code", after_s, SHIFT_PER_S, azure_lengths("code", AZURE_DIVISOR)),
    ]
    outcomes = []
    for name, role_change in (("with role change", True), ("without role change", False)):
        settings = {
            **_settings(SHIFT_GOAL, prefill=1, decode=3, max_streams=10),
            "cluster.autoscale.max_workers": 4,
            "cluster.autoscale.role_change": role_change,
        }
        if not role_change:
            settings["cluster.autoscale.decode.min"] = 3  # nor may it end a decode worker to start a prefill worker
        outcomes.append(_run(name, "shift", SHIFT_MODEL, settings, phases, SHIFT_GOAL, seed))
    text = (
        f"{SHIFT_PER_S:g} requests per second, first with the lengths of Azure's conversation trace, then with those "
        f"of its code trace, all divided by {AZURE_DIVISOR}, on four workers: one prefill, three decode at the start."
    )
    faults = list(shift_faults(*outcomes))
    _finish("A shift of the mix, from chat to prompts", text, outcomes, faults, output, "shift.svg")


def _settings(goal: Goal, *, prefill: int, decode: int, max_streams: int) -> dict[str, object]:
    return {
        "cluster.pools.prefill.replicas": prefill,
        "cluster.pools.decode.replicas": decode,
        "cluster.pools.decode.engine": {"scheduling": {"max_num_seqs": max_streams}},
        "cluster.autoscale.enabled": True,
        "cluster.autoscale.targets": {"interactive": {"ttft_s": goal.ttft_s, "tpot_s": goal.tpot_s}},
        "proxy.local_prefill": "if_needed",  # decode workers help nobody out, so that a lack is seen as one
    }


def _run(
    name: str,
    cluster: str,
    model: FakeModel,
    settings: Mapping[str, object],
    phases: Sequence[Phase],
    goal: Goal,
    seed: int,
) -> Outcome:
    console = Console(highlight=False)
    console.print(f"{name}: {sum(phase.seconds for phase in phases):g} s of load")
    with TemporaryDirectory(prefix="pdserve-drill-") as folder:
        path = write_fake_model(Path(folder) / "fake", model)
        outcome = run(name, cluster, DEFAULT_FILE, {**settings, "cluster.model": str(path)}, phases, goal, seed)
    for line in said(outcome):
        console.print(line, markup=False, soft_wrap=True)
    return outcome


def _finish(
    title: str, text: str, outcomes: Sequence[Outcome], faults: Sequence[str], output: Path | None, picture: str
) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading)
    for row in rows(outcomes):
        table.add_row(*row)
    Console(highlight=False, width=200).print(table)
    if output is not None:
        draw(outcomes, output.with_name(picture))
        with output.open("a") as file:
            file.write(f"\n{markdown(title, text, outcomes, faults, picture)}")
    if faults:
        raise CommandError("\n".join(faults))
