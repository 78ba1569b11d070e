"""Pairs of workers that end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from engine.engine import Engine
from kv_transfer.config import TransferConfig
from tests.unit.kv_transfer.pair import Pair, make_engine, transfer_config

PairFactory = Callable[..., Pair]


@pytest.fixture
async def new_pair() -> AsyncIterator[PairFactory]:
    pairs: list[Pair] = []

    def make(config: TransferConfig | None = None, prefill: Engine | None = None, decode: Engine | None = None) -> Pair:
        pair = Pair(config or transfer_config(), prefill or make_engine(), decode or make_engine())
        pairs.append(pair)
        return pair

    yield make
    for pair in pairs:
        await pair.stop()


@pytest.fixture
def pair(new_pair: PairFactory) -> Pair:
    return new_pair()
