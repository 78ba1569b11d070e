"""What runs came to, as rows for people and as Markdown."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence

from bench.scaling.run import Outcome
from bench.table import markdown_table

HEADINGS = (
    *("run", "phase", "requests", "failed", "TTFT p50, s", "p90, s", "TPOT p90, ms"),
    *("within both targets", "in the phase's second half", "workers wanted at its end"),
)
LOG_HEAD = re.compile(r"^.*?autoscale: ")


def rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    for outcome in outcomes:
        for phase in outcome.phases:
            seen = outcome.of_phase(phase)
            answered = [each for each in seen if not each.error]
            token_s = [each.per_token_s for each in answered if each.per_token_s is not None]
            end_s = outcome.begin_of(phase) + phase.seconds
            last = [each for each in outcome.sizes if each.at_s <= end_s][-1]
            yield (
                outcome.name,
                phase.name,
                f"{len(seen)}",
                f"{len(seen) - len(answered)}",
                _quantile([each.first_s for each in answered], 50, 1, 2),
                _quantile([each.first_s for each in answered], 90, 1, 2),
                _quantile(token_s, 90, 1000, 0),
                f"{outcome.attained(seen):.0%}",
                f"{outcome.attained(outcome.of_phase(phase, after_s=phase.seconds / 2)):.0%}",
                " + ".join(f"{number} {role}" for role, number in last.desired.items()),
            )


def markdown(title: str, text: str, outcomes: Sequence[Outcome], faults: Sequence[str], picture: str) -> str:
    parts = [f"## {title}\n\n{text}\n\n", markdown_table(HEADINGS, rows(outcomes)), "\n"]
    for outcome in outcomes:
        parts.append(f"What the autoscaler said in the run *{outcome.name}*:\n\n```text\n")
        parts += [f"{line}\n" for line in said(outcome)]
        parts.append("```\n\n")
    parts.append("".join(f"- fault: {fault}\n" for fault in faults) or "No fault.\n")
    parts.append(f"\n![{title}]({picture})\n")
    return "".join(parts)


def said(outcome: Outcome) -> list[str]:
    """Its lines, without what a logger puts before them."""
    return [LOG_HEAD.sub("", line) for line in outcome.log if "autoscale: on" not in line]


def _quantile(values: Sequence[float], percent: int, factor: float, digits: int) -> str:
    if len(values) < 2:
        return "–"
    return f"{factor * statistics.quantiles(values, n=100, method='inclusive')[percent - 1]:.{digits}f}"
