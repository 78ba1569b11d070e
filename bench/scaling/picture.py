"""Arrivals and pool sizes over time, and below them what requests waited for their first token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.scaling.run import Outcome

COLOURS = {"prefill": "#c55a11", "decode": "#1f4e79"}


def draw(outcomes: Sequence[Outcome], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, len(outcomes), figsize=(8 * len(outcomes), 5), sharex=True, squeeze=False)
    for column, outcome in enumerate(outcomes):
        sizes, waits = grid[0][column], grid[1][column]
        for role, colour in COLOURS.items():
            times = [each.at_s for each in outcome.sizes]
            sizes.step(
                times, [s.desired[role] for s in outcome.sizes], where="post", color=colour, label=f"{role}, wanted"
            )
            ready = [each.ready[role] for each in outcome.sizes]
            sizes.step(times, ready, where="post", color=colour, linestyle=":", label=f"{role}, ready")
        sizes.set_title(outcome.name, loc="left", fontsize=9)
        sizes.set_ylabel("workers")
        sizes.set_ylim(bottom=0)
        sizes.legend(fontsize=7, loc="upper right")
        answered = [each for each in outcome.seen if not each.error]
        waits.plot([s.at_s for s in answered], [s.first_s for s in answered], ".", markersize=2, color="#444444")
        waits.axhline(outcome.goal.ttft_s, color="#b00020", linewidth=0.8)
        waits.set_yscale("log")
        waits.set_ylabel("time to first token, s (log); the target")
        waits.set_xlabel("seconds; a line where the load changes")
        for axis in (sizes, waits):
            for phase in outcome.phases[1:]:
                axis.axvline(outcome.begin_of(phase), color="#888888", linewidth=0.8, linestyle="--")
            axis.grid(visible=True, linewidth=0.3)
    figure.tight_layout()
    figure.savefig(file)
    pyplot.close(figure)
