"""NIXL keeps the contract of all transports where caches and staging rings are in device memory too."""

from __future__ import annotations

import pytest

from tests.contract.ends import MakeTransport
from tests.contract.transport_contract import TransportContract


@pytest.fixture
def make_transport() -> MakeTransport:
    pytest.importorskip("nixl_cu12", reason="nixl_cu12 is not installed")
    from kv_transfer.nixl import NixlTransport

    return NixlTransport


class TestNixlInDeviceMemory(TransportContract):
    DEVICES = ("cuda",)
