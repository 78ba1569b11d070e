"""Every way of KV blocks over NIXL, and TCP, keeps the contract of all ways; `tests/contract` has the table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kv_transfer.config import TransferConfig
from tests.contract.media import nixl
from tests.contract.peer_route import PeerRoute
from tests.contract.pool_fill_route import PoolFillRoute
from tests.contract.pool_read_route import PoolReadRoute
from tests.contract.route import Medium, Route
from tests.contract.route_contract import MakeRoute, RouteContract

pytestmark = pytest.mark.integration
Way = Callable[[Medium, TransferConfig, dict[str, object]], Route]
WAYS: dict[str, Way] = {
    "between_workers": PeerRoute,
    "from_the_pool": PoolReadRoute,
    "into_the_pool": PoolFillRoute,
}


class TestOverNixl(RouteContract):
    @pytest.fixture(params=WAYS)
    def make_route(self, request: pytest.FixtureRequest) -> MakeRoute:
        async def make(config: TransferConfig, differs: dict[str, object]) -> Route:
            return WAYS[request.param](nixl(config), config, differs)

        return make
