"""When a scaling drill fails, and what it says then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.scaling.arrivals import Lengths, Phase
from bench.scaling.crowd import Seen
from bench.scaling.run import Goal, Outcome
from bench.scaling.sizes import Sizes
from bench.scaling.verdict import shift_faults, step_faults

PHASES = [Phase(name, 100, 1.0, [Lengths(1, 1)]) for name in ("calm", "up", "down")]
GOOD = {0: 2, 120: 4, 220: 2}  # prefill workers, from this second on


def outcome(sizes: Mapping[int, int] = GOOD, *, slow: Sequence[str] = (), failed: int = 0) -> Outcome:
    seen = [
        Seen(100 * index + second, phase.name, 5.0 if phase.name in slow else 0.1, 0.01)
        for index, phase in enumerate(PHASES)
        for second in range(100)
    ]
    seen += [Seen(50, "calm", error="UNAVAILABLE: gone")] * failed
    seconds = [(second, max(at for at in sizes if at <= second)) for second in range(300)]
    told = [Sizes(second, {"prefill": sizes[at]}, {"prefill": sizes[at]}) for second, at in seconds]
    return Outcome("a run", PHASES, Goal(1.0, 0.1), seen, told, [])


def test_one_change_at_each_step_in_its_direction_is_as_it_should_be() -> None:
    assert list(step_faults(outcome())) == []


def test_a_second_change_a_wrong_one_and_none_at_all_are_faults() -> None:
    assert list(step_faults(outcome({0: 2, 120: 3, 150: 4, 220: 2}))) == ["up: prefill was changed 2 times"]
    assert list(step_faults(outcome({0: 2, 50: 3}))) == ["calm: prefill went from 2 to 3", "no pool was changed"]
    assert list(step_faults(outcome({0: 2, 120: 1}))) == ["up: prefill went from 2 to 1"]


def test_requests_that_fail_or_stay_late_are_faults() -> None:
    assert list(step_faults(outcome(failed=1))) == ["a run: 1 requests failed, the first with UNAVAILABLE: gone"]
    late = "up: only 0% were within both targets in its second half"
    assert list(step_faults(outcome(slow=["up"]))) == [late]


def test_a_shift_is_mended_by_role_change_and_by_nothing_else() -> None:
    assert list(shift_faults(outcome(), outcome(slow=["down"]))) == []
    (fault,) = shift_faults(outcome(), outcome())
    assert "met without role change, too" in fault
