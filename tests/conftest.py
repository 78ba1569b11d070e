"""With PDSERVE_REQUIRE_ALL=1, as in CI, a skipped test is a failed one; and the longest files of tests begin first."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

LONGEST_FIRST = (
    "test_cluster",
    "test_readme",
    "test_parity",
    "test_handoff",
    "test_pooled",
    "test_liveness",
    "test_handoff_faults",
    "test_structured_output",
    "test_reference_parity",
    "test_strategies",
    "test_two_machines",
    "test_prefix_hits",
    "test_hosts",
    "test_api",
    "test_cancelled_requests",
    "test_chaos",
    "test_pool_node",
    "test_pool_nodes",
    "test_nixl_processes",
    "test_migration",
    "test_soak",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """So that no process is left alone with a long one at the end; the files' own order stays."""
    ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _fail_when_all_are_required(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _fail_when_all_are_required(report)
    return report


def _fail_when_all_are_required(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("PDSERVE_REQUIRE_ALL") == "1":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"PDSERVE_REQUIRE_ALL is set, and this was skipped: {reason}"
