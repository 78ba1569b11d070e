"""A table as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column is text, the others are numbers. Ends with a line break."""
    rule = ["---", *("---:" for _ in headings[1:])]
    return "".join(f"| {' | '.join(row)} |\n" for row in (headings, rule, *rows))
