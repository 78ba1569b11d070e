"""The short form of `python -m tests.drill.pool_nodes`, without its times: every text is right, and nothing is held."""

from __future__ import annotations

import pytest

from tests.drill.pool_nodes import MODEL, WORKER_BLOCKS, Drill
from tests.drill.small_cluster import small_cluster

pytestmark = pytest.mark.drill

SEED = 1
STOPPED_S = 1.5  # so long one node is stopped; the other phases are parts of it


def test_with_one_of_two_evicting_nodes_stopped_then_killed_then_back_empty_every_text_is_right() -> None:
    """Field report D38."""
    with small_cluster(MODEL, WORKER_BLOCKS) as processes:
        phases = {phase.name: phase for phase in Drill(processes, SEED).run(STOPPED_S)}
    assert list(phases) == ["both nodes", "one stopped", "continued", "killed", "back, empty"]
    assert all(phase.first_token_s for phase in phases.values())
    assert phases["both nodes"].num_hits > 0
    assert phases["one stopped"].num_hits > 0  # the other node's share
    assert sum(phase.num_evictions for phase in phases.values()) > 0
