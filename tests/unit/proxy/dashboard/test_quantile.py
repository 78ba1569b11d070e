"""Quantiles by nearest rank, and what thinning leaves of them."""

from __future__ import annotations

import random

import pytest

from proxy.dashboard.quantile import quantile, thinned


@pytest.mark.parametrize(("share", "found"), [(0.5, 50), (0.95, 95), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_a_quantile_is_a_value_that_was_measured(share: float, found: int) -> None:
    assert quantile(range(1, 101), share) == found


def test_of_nothing_there_is_none_and_of_one_value_it_is_that() -> None:
    assert quantile([], 0.5) is None
    assert quantile([7.0], 0.01) == quantile([7.0], 0.99) == 7.0


def test_few_values_are_all_kept_in_order() -> None:
    assert thinned([3.0, 1.0, 2.0], limit=3) == (1.0, 2.0, 3.0)


def test_thinned_values_have_the_quantiles_of_all_of_them() -> None:
    values = random.Random(1).choices(range(100_000), k=10_000)
    kept = thinned(values, limit=200)
    assert len(kept) == 200
    for share in (0.05, 0.5, 0.95, 0.99):
        found, true = quantile(kept, share), quantile(sorted(values), share)
        assert found is not None
        assert true is not None
        assert abs(found - true) < 1_000
