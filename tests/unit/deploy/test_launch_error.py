"""What a person is told of a launch that failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from deploy.launch_error import LaunchError
from tests.unit.deploy.test_cluster_state import state


def test_it_has_the_last_lines_that_the_process_logged_without_its_traceback(tmp_path: Path) -> None:
    failed = replace(state(), folder=str(tmp_path))
    failed.log_dir.mkdir()
    lines = [
        "decode-0 starts",
        "decode-0 could not start",
        "Traceback (most recent call last):",
        "  File x",
        "OSError: no",
    ]
    (failed.log_dir / "decode-0.log").write_text("\n".join(lines) + "\n")
    said = str(LaunchError.of(failed, "decode-0", "OSError: no"))
    assert said.startswith("decode-0 could not start: OSError: no\nthe last lines of its log:\n")
    assert said.endswith("decode-0 starts\ndecode-0 could not start\nOSError: no")


def test_a_process_that_logged_nothing_leaves_the_error_alone(tmp_path: Path) -> None:
    failed = replace(state(), folder=str(tmp_path))
    assert "proxy could not start: killed" in str(LaunchError.of(failed, "proxy", "killed"))
