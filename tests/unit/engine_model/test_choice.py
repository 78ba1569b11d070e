"""Choosing: a function of logits, parameters, seed and position; distributed as its parameters say."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from engine.choice import choose_tokens, uniform
from engine.request import SamplingParams


def params(temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, seed: int = 0) -> SamplingParams:
    return SamplingParams(max_tokens=1, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)


def logits(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


def draw(probabilities: list[float], how: SamplingParams, times: int = 4000) -> dict[int, float]:
    """The share of each token over `times` positions."""
    row = torch.tensor(probabilities).log().expand(times, -1)
    counts = Counter(choose_tokens(row, [how] * times, range(times)))
    return {token: count / times for token, count in counts.items()}


def random_logits(num_rows: int, size: int = 1000, seed: int = 0) -> Tensor:
    return 3 * torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed))


def test_greedy_takes_the_best_token() -> None:
    rows = logits([0.1, 0.3, 0.2], [5.0, -1.0, 4.9])
    assert choose_tokens(rows, [params(temperature=0.0)] * 2, [4, 9]) == [1, 0]


def test_draws_follow_the_probabilities() -> None:
    shares = draw([0.5, 0.3, 0.15, 0.05], params())
    assert shares == pytest.approx({0: 0.5, 1: 0.3, 2: 0.15, 3: 0.05}, abs=0.03)


def test_temperature_sharpens_and_flattens() -> None:
    assert draw([0.6, 0.4], params(temperature=0.5))[0] == pytest.approx(0.36 / 0.52, abs=0.03)
    assert draw([0.6, 0.4], params(temperature=100.0))[0] == pytest.approx(0.5, abs=0.03)


def test_top_k_keeps_the_k_likeliest_in_proportion() -> None:
    assert draw([0.1, 0.4, 0.2, 0.3], params(top_k=2)) == pytest.approx({1: 4 / 7, 3: 3 / 7}, abs=0.03)


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    assert draw([0.1, 0.45, 0.15, 0.3], params(top_p=0.7)) == pytest.approx({1: 0.6, 3: 0.4}, abs=0.03)


def test_top_p_counts_within_top_k() -> None:
    assert set(draw([0.4, 0.3, 0.2, 0.1], params(top_k=2, top_p=0.5))) == {0}
    assert set(draw([0.4, 0.3, 0.2, 0.1], params(top_k=2, top_p=0.6))) == {0, 1}


def test_top_p_over_a_flat_distribution_keeps_its_share() -> None:
    row = torch.zeros(2000, 500)
    drawn = set(choose_tokens(row, [params(top_p=0.5)] * 2000, range(2000)))
    assert 240 <= len(drawn) <= 251


def test_top_k_beyond_the_first_candidates_is_exact() -> None:
    row = torch.linspace(1, 0, 1000).expand(2000, -1)
    drawn = choose_tokens(row, [params(top_k=300)] * 2000, range(2000))
    assert max(drawn) < 300
    assert len(set(drawn)) > 290


@pytest.mark.parametrize(
    "how", [params(top_p=0.0), params(top_k=1), params(temperature=1e-4), params(temperature=1e-30)]
)
def test_the_narrowest_settings_are_greedy(how: SamplingParams) -> None:
    rows = random_logits(50)
    assert choose_tokens(rows, [how] * 50, range(50)) == rows.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [2e-5, 1e-3, 1e4, 1e30])
def test_extreme_temperatures_and_logits_stay_in_the_vocabulary(temperature: float) -> None:
    rows = random_logits(20) * 1e4
    rows[:, ::2] = -torch.inf
    drawn = choose_tokens(rows, [params(temperature=temperature)] * 20, range(20))
    assert all(0 <= token < 1000 and rows[i, token] > -torch.inf for i, token in enumerate(drawn))


def test_neighbours_change_nothing() -> None:
    rows = random_logits(8)
    settings = [params(seed=i, top_p=0.9 if i % 2 else 1.0, top_k=i * 10, temperature=i / 4) for i in range(8)]
    positions = list(range(100, 108))
    together = choose_tokens(rows, settings, positions)
    alone = [choose_tokens(rows[i : i + 1], settings[i : i + 1], positions[i : i + 1])[0] for i in range(8)]
    backwards = choose_tokens(rows.flip(0), settings[::-1], positions[::-1])[::-1]
    assert together == alone == backwards


def test_rounding_in_the_logits_seldom_changes_a_draw() -> None:
    rows = random_logits(500)
    noisy = rows + 1e-6 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    how = [params(top_p=0.95)] * 500
    assert choose_tokens(rows, how, range(500)) == choose_tokens(noisy, how, range(500))


def test_seed_and_position_both_matter_and_repeat() -> None:
    numbers = {(seed, position): uniform(seed, position) for seed in range(40) for position in range(40)}
    assert len(set(numbers.values())) == 1600
    assert all(0 <= number < 1 for number in numbers.values())
    assert sum(numbers.values()) / 1600 == pytest.approx(0.5, abs=0.03)
    assert numbers[3, 4] == uniform(3, 4)


def test_the_numbers_never_change_between_versions() -> None:
    assert uniform(0, 0) == 0.42828165416526076
    assert uniform(2**64 - 1, 12345) == uniform(-1, 12345)


def test_a_batch_may_mix_greedy_and_drawn_rows() -> None:
    rows = random_logits(3)
    settings = [params(temperature=0), params(seed=5), params(temperature=0)]
    mixed = choose_tokens(rows, settings, [1, 2, 3])
    assert mixed[0] == int(rows[0].argmax())
    assert mixed[2] == int(rows[2].argmax())
    assert mixed[1] == choose_tokens(rows[1:2], settings[1:2], [2])[0]
