"""What a run did and what came of it, as text."""

from __future__ import annotations

from tests.faults.fault import Fault, Message
from tests.faults.plan import Result
from tests.faults.real_plan import RealResult

MUST_BE_NONE = ("wrong texts", "hangs past the deadline", "not back at baseline")


def table_of(result: Result) -> str:
    return "\n".join([*_messages(result), "", *_outcomes(result), "", *_failed_attempts(result), "", *_verdict(result)])


def _messages(result: Result) -> list[str]:
    hits = result.faults.hits
    columns = [fault for fault in Fault if any(hits[message, fault] for message in Message)]
    lines = ["| message | sent | " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) + 1)]
    for message in Message:
        if result.faults.messages[message]:
            cells = [str(hits[message, fault] or "") for fault in columns]
            lines.append(f"| {message} | {result.faults.messages[message]} | " + " | ".join(cells) + " |")
    totals = [str(sum(hits[message, fault] for message in Message)) for fault in columns]
    return [*lines, f"| **all** | {result.faults.messages.total()} | " + " | ".join(totals) + " |"]


def _outcomes(result: Result) -> list[str]:
    lines = [f"| {outcome} | {count} |" for outcome, count in sorted(result.outcomes.items())]
    return ["| outcome | requests |", "|---|---:|", *lines, f"| **all** | {result.outcomes.total()} |"]


def _failed_attempts(result: Result) -> list[str]:
    lines = [f"| {reason} | {count} |" for reason, count in result.failed_attempts.most_common()]
    return ["| attempts that failed | |", "|---|---:|", *lines, f"| **all** | {result.failed_attempts.total()} |"]


def _verdict(result: Result) -> list[str]:
    found = (result.wrong_texts, result.hangs, result.left_over)
    lines = [f"| {name} | {len(texts)} |" for name, texts in zip(MUST_BE_NONE, found, strict=True)]
    if isinstance(result, RealResult):
        lines += [f"| {mishap} | {count} times |" for mishap, count in result.mishaps.items()]
        lines.append(f"| blocks looked up in the pool and found | {result.num_found} |")
    lines += [f"| workers and nodes that died | {result.num_deaths} |", f"| seconds | {result.seconds:.0f} |"]
    return ["| must be none | |", "|---|---:|", *lines, *(f"- {text}" for texts in found for text in texts[:20])]
