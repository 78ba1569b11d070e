"""What a measurement of the KV plane says, in each of its forms."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench import kv_report
from bench.kv import MEMCPY, HandoffRun, KVReport, Series
from bench.kv_worker import PrefillTimes, Received

MB = 1_000_000


@pytest.fixture
def report() -> KVReport:
    """Reads at 2 GB/s and at 1 with the copy, beside a memcpy of 4; 2 s of prefill and 10 ms more until Valid."""
    by_path = {
        "nixl": Series(8 * MB, read_s=[0.003, 0.004, 0.04], total_s=[0.008], latency_s=[0.0001, 0.0002, 0.0003]),
        MEMCPY: Series(8 * MB, read_s=[0.002, 0.002, 0.006]),
    }
    received = Received(valid_at=12.01, num_bytes=8 * MB, transfer_s=0.5, overlap_ratio=0.9, num_reads=7)
    return KVReport(
        blocks={64 * 1024: by_path, 1024 * 1024: by_path},
        prompts={256: by_path},
        handoffs=[HandoffRun(256, 4, PrefillTimes(10.0, 12.0), received)],
        idle_cpu_s=(0.05, 0.001),
        num_cores=2,
        loads=(0.5, 1.5),
    )


def test_markdown_has_a_row_for_each_path_with_its_share_of_memcpy(report: KVReport) -> None:
    text = kv_report.markdown(report, "kv.svg")
    assert "| 64 KiB | nixl | 2.00 | 50% | 1.00 | 25% | 200 |" in text
    assert "| 256 tokens | memcpy | 4.00 | 100% |  |  |  |" in text
    assert "(kv.svg)" in text


def test_the_exposed_transfer_is_what_comes_after_prefill(report: KVReport) -> None:
    assert "| 256 tokens | 4 | 2.00 | 10.0 | 0.50% | 7 | 90% |" in kv_report.markdown(report, "kv.svg")


def test_it_says_how_calm_the_machine_was(report: KVReport) -> None:
    noise = kv_report.noise(report)
    assert "load 0.5 before and 1.5 after" in noise
    assert "3.0 times" in noise


def test_idle_cpu_is_a_share_of_one_core(report: KVReport) -> None:
    assert "| source | 0.050 | 0.50% |" in kv_report.markdown(report, "kv.svg")


def test_the_same_tables_are_shown_in_a_terminal(report: KVReport) -> None:
    console = Console(width=160, record=True, file=StringIO())
    kv_report.show(report, console)
    assert "share of prefill" in console.export_text()


def test_the_plot_is_a_picture(report: KVReport, tmp_path: Path) -> None:
    kv_report.draw(report, tmp_path / "kv.svg")
    assert "<svg" in (tmp_path / "kv.svg").read_text()
