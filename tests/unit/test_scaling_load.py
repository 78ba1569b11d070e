"""The loads of the scaling drills, and what is made of what clients saw."""

from __future__ import annotations

from bench.scaling.arrivals import Lengths, Phase, arrivals, azure_lengths
from bench.scaling.crowd import Seen
from bench.scaling.report import markdown, rows
from bench.scaling.run import Goal, Outcome
from bench.scaling.sizes import SizeChange, Sizes

PHASES = [Phase("calm", 50, 4.0, [Lengths(3, 2)]), Phase("busy", 50, 8.0, [Lengths(3, 2), Lengths(5, 1)])]


def outcome(seen: list[Seen]) -> Outcome:
    sizes = [Sizes(at_s, {"prefill": number}, {"prefill": 1}) for at_s, number in ((1.0, 1), (60.0, 2), (61.0, 2))]
    return Outcome("a run", PHASES, Goal(1.0, 0.1), seen, sizes, ["12:00 INFO autoscale: prefill 1 → 2, load: why"])


def test_the_same_seed_gives_the_same_requests_at_the_rates_and_lengths_of_the_phases() -> None:
    first, again = list(arrivals(PHASES, 7)), list(arrivals(PHASES, 7))
    assert first == again
    calm, busy = ([a for a in first if a.phase == phase.name] for phase in PHASES)
    assert 130 <= len(calm) <= 270
    assert 300 <= len(busy) <= 500
    assert all(a.at_s < 50 for a in calm)
    assert all(50 <= a.at_s < 100 for a in busy)
    assert [(len(a.prompt), a.max_tokens) for a in busy[:3]] == [(3, 2), (5, 1), (3, 2)]


def test_azures_lengths_shift_from_answers_to_prompts() -> None:
    conv, code = azure_lengths("conv", 4), azure_lengths("code", 4)
    assert (len(conv), len(code)) == (19366, 8819)
    assert conv[0] == Lengths(93, 11)
    assert sum(each.prompt_tokens for each in code) / len(code) > 500
    assert min(each.generated_tokens for each in code) == 1


def test_a_failed_request_and_a_late_one_are_not_within_the_targets_and_size_changes_are_found() -> None:
    seen = [
        Seen(10, "calm", 0.5, 0.05),
        Seen(20, "calm", 0.5, None),
        Seen(60, "busy", 0.5, 0.2),
        Seen(70, "busy", 3.0, 0.05),
        Seen(80, "busy", error="UNAVAILABLE"),
        Seen(90, "busy", 0.1, 0.05),
    ]
    made = outcome(seen)
    calm, busy = PHASES
    assert made.attained(made.of_phase(calm)) == 1.0
    assert made.attained(made.of_phase(busy)) == 0.25
    assert made.attained(made.of_phase(busy, after_s=25)) == 0.5
    assert made.changes == [SizeChange(60.0, "prefill", 1, 2)]
    assert [row[:4] for row in rows([made])] == [("a run", "calm", "2", "0"), ("a run", "busy", "4", "1")]
    text = markdown("Title", "Text.", [made], ["too slow"], "plot.svg")
    assert "\nprefill 1 → 2, load: why\n" in text
    assert "- fault: too slow" in text
