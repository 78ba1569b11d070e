"""Where workers listen."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cluster.nodes import listening_address
from cluster.spec import ClusterSpec


def test_a_cluster_on_loopback_listens_nowhere_else() -> None:
    assert [listening_address(host) for host in ("127.0.0.1", "::1", "localhost")] == ["127.0.0.1", "::1", "localhost"]


def test_several_machines_need_an_address_that_the_others_can_reach() -> None:
    with pytest.raises(ValidationError, match="no other machine can reach: set host to this machine's own address"):
        ClusterSpec.model_validate({"num_nodes": 2, "pools": {"mixed": {"replicas": 1}}})
