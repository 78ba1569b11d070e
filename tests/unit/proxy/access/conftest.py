"""A proxy with API keys, before scripted workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy.access.caller import Scope, TenantLimits
from tests.unit.proxy.access.keys import make_key, write_keys
from tests.unit.proxy.conftest import Cluster, MakeCluster


@dataclass(frozen=True)
class Guarded:
    cluster: Cluster
    keys: dict[str, str]  # themselves, by name


MakeGuarded = Callable[..., Awaitable[Guarded]]


@pytest.fixture
def make_guarded(make_cluster: MakeCluster, tmp_path: Path) -> MakeGuarded:
    """`await make_guarded(open_metrics=True)`: words are settings."""

    async def make(**settings: object) -> Guarded:
        made = {
            "alice": make_key("alice"),
            "gateway": make_key("gateway", may_set_tenant=True),
            "monitor": make_key("monitor", scopes={Scope.OBSERVE}),
            "revoked": make_key("revoked", is_revoked=True),
            "expired": make_key("expired", expires_at="2026-01-02T00:00:00Z"),
        }
        limits = {"alice": TenantLimits(max_running=2)}
        path = write_keys(tmp_path / "keys.json", *(key for _, key in made.values()), tenants=limits)
        cluster = await make_cluster(fronts=True, keys_file=path, **settings)
        return Guarded(cluster, {name: text for name, (text, _) in made.items()})

    return make


@pytest.fixture
async def guarded(make_guarded: MakeGuarded) -> Guarded:
    return await make_guarded()
