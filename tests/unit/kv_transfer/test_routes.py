"""Every way of KV blocks that this process can have keeps the contract of all ways; `tests/contract` has the table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kv_transfer.config import TransferConfig
from tests.contract.media import gloo, local, pipes
from tests.contract.peer_route import PeerRoute
from tests.contract.pool_fill_route import PoolFillRoute
from tests.contract.pool_read_route import PoolReadRoute
from tests.contract.route import Medium
from tests.contract.route_contract import CompatibilityContract, MakeRoute, RouteContract


class TestBetweenWorkers(RouteContract, CompatibilityContract):
    @pytest.fixture(params=[local, pipes, gloo], ids=["local", "two_sided", "gloo"])
    def make_route(self, request: pytest.FixtureRequest) -> MakeRoute:
        medium: Callable[[TransferConfig], Medium] = request.param

        async def make(config: TransferConfig, differs: dict[str, object]) -> PeerRoute:
            return PeerRoute(medium(config), config, differs)

        return make


class TestFromThePool(RouteContract, CompatibilityContract):
    @pytest.fixture
    def make_route(self) -> MakeRoute:
        async def make(config: TransferConfig, differs: dict[str, object]) -> PoolReadRoute:
            return PoolReadRoute(local(config), config, differs)

        return make


class TestIntoThePool(RouteContract, CompatibilityContract):
    @pytest.fixture
    def make_route(self) -> MakeRoute:
        async def make(config: TransferConfig, differs: dict[str, object]) -> PoolFillRoute:
            return PoolFillRoute(local(config), config, differs)

        return make
