"""The short form of `python -m tests.drill.flood`: too many at once, a burst, and clients that leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.fake_model import write_fake_model
from tests.drill.flood import Drill
from tests.integration.processes import Processes

pytestmark = pytest.mark.drill


@pytest.fixture
def drill(fake_cluster: Processes) -> Drill:
    return Drill(fake_cluster, seed=1)


def test_of_a_flood_each_is_answered_refused_or_gone_and_nothing_is_left(tmp_path: Path) -> None:
    """Field report D46."""
    with Processes(write_fake_model(tmp_path / "model"), tmp_path, engine={"num_blocks": 256}) as processes:
        drill = Drill(processes, seed=1)
        drill.start("--max-queued-requests=16")
        result = drill.at_once("flood", 200, 60.0)
    assert set(result.outcomes) == {"answered", "refused: 429"}
    assert result.outcomes["answered"] >= 16
    assert result.refusals_without_retry_after == 0
    assert result.restarted == 0


def test_a_burst_that_finds_places_is_answered_as_a_whole(drill: Drill) -> None:
    """Field report D14."""
    result = drill.at_once("burst", 100, 60.0)
    assert result.outcomes == {"answered": 100}
    assert result.restarted == 0


def test_clients_that_leave_leave_nothing(drill: Drill) -> None:
    """Field report D47."""
    result = drill.churn(150, idle_s=0.0)
    assert sum(result.outcomes.values()) == 150
    assert not any(name.startswith("broken") for name in result.outcomes)
    assert result.outcomes["answered"] > 75
