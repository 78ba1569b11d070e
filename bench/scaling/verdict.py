"""What in a run is not as it should be, as sentences."""

from __future__ import annotations

from collections.abc import Iterator

from bench.scaling.arrivals import Phase
from bench.scaling.run import Outcome

WANTED = 0.9  # share of requests within the targets, the autoscaler's own default


def step_faults(outcome: Outcome) -> Iterator[str]:
    """Of a load that goes up and down again: more than one change of a pool at a step, or one that is the wrong way."""
    before, up, down = outcome.phases
    yield from _failures(outcome)
    for phase, direction in ((before, 0), (up, 1), (down, -1)):
        begin_s = outcome.begin_of(phase)
        changes = [c for c in outcome.changes if begin_s <= c.at_s < begin_s + phase.seconds]
        for role in ("prefill", "decode"):
            own = [change for change in changes if change.role == role]
            if len(own) > 1:
                yield f"{phase.name}: {role} was changed {len(own)} times"
            if any((change.after > change.before) - (change.after < change.before) != direction for change in own):
                yield f"{phase.name}: {role} went from {own[0].before} to {own[-1].after}"
        yield from _not_recovered(outcome, phase)
    if not any(change.at_s >= outcome.begin_of(up) for change in outcome.changes):
        yield "no pool was changed"


def shift_faults(with_change: Outcome, without: Outcome) -> Iterator[str]:
    """Of the same shift with role change and without: only the first may recover."""
    yield from _failures(with_change)
    yield from _failures(without)
    for phase in with_change.phases:
        yield from _not_recovered(with_change, phase)
    last = without.phases[-1]
    if without.attained(without.of_phase(last, after_s=last.seconds / 2)) >= WANTED:
        yield f"{last.name}: the targets are met without role change, too, so that it proves nothing"


def _failures(outcome: Outcome) -> Iterator[str]:
    if outcome.failed:
        yield f"{outcome.name}: {len(outcome.failed)} requests failed, the first with {outcome.failed[0].error}"


def _not_recovered(outcome: Outcome, phase: Phase) -> Iterator[str]:
    share = outcome.attained(outcome.of_phase(phase, after_s=phase.seconds / 2))
    if share < WANTED:
        yield f"{phase.name}: only {share:.0%} were within both targets in its second half"
