"""Each test that docs/field_reports.md names is there, and its docstring names the row."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (D\d\d) \|")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NAMED = re.compile(r"Field reports? (D\d\d(?:(?:, | and )D\d\d)*)")
Test = tuple[str, str]  # file, function


def listed() -> list[tuple[str, Test]]:
    """(row, test) of the table."""
    lines = (ROOT / "docs" / "field_reports.md").read_text().splitlines()
    return [
        (row[1], (file, name)) for line in lines if (row := ROW.match(line)) is not None
        for file, name in TEST.findall(line)
    ]  # fmt: skip


@cache
def rows_named_in(file: str) -> dict[str, set[str]]:
    """By test of the file; what the file's own docstring names counts for each of them."""
    module = ast.parse((ROOT / file).read_text())
    of_all = set(_rows(module))
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: of_all | set(_rows(node)) for node in functions if node.name.startswith("test_")}


def _rows(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for match in NAMED.finditer(ast.get_docstring(node) or ""):
        yield from re.findall(r"D\d\d", match[1])


def test_the_table_has_rows_and_every_row_a_test() -> None:
    lines = (ROOT / "docs" / "field_reports.md").read_text().splitlines()
    rows = [row[1] for line in lines if (row := ROW.match(line)) is not None]
    assert rows == sorted(set(rows))
    assert set(rows) == {row for row, _ in listed()}


@pytest.mark.parametrize(("row", "test"), listed(), ids=lambda value: value if isinstance(value, str) else value[1])
def test_a_test_that_the_table_names_is_there_and_names_the_row(row: str, test: Test) -> None:
    file, name = test
    assert row in rows_named_in(file).get(name, set()), f"{file}::{name} does not say that it covers {row}"
