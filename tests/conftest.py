"""With PDSERVE_REQUIRE_ALL=1, as in CI, a skipped test is a failed one: nothing is left out unseen."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


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
