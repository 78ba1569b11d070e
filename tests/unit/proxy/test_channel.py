"""The proxy's connections stay inside the cluster."""

from __future__ import annotations

import pytest

from tests.unit.proxy.conftest import MakeCluster


async def test_an_http_proxy_of_the_environment_is_not_asked(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    cluster = await make_cluster()  # ready: the controller was reached, and both workers
    assert cluster.decode.hellos
