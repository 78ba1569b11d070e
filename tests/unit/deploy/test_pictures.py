"""The pictures' runs, on the fake model."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.fake_model import write_fake_model
from deploy.pictures import BATCH_LENGTHS, batching
from engine.fake_runner import FakeModel
from engine.scheduling import StrategyName


@pytest.mark.parametrize(
    ("strategy", "starts", "ends"),
    [
        ("static", [0, 0, 0, 8, 8], [5, 8, 3, 14, 12]),
        ("chunked", [0, 0, 0, 3, 5], [5, 8, 3, 9, 9]),
    ],
)
def test_the_third_of_five_ends_first_and_its_place_is_taken_in_the_next_step_unless_batches_are_static(
    tmp_path: Path, strategy: StrategyName, starts: list[int], ends: list[int]
) -> None:
    rows = batching(write_fake_model(tmp_path, FakeModel(max_model_len=256)), strategy).rows
    assert [row.request.partition(":")[0] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [min(bar.start for bar in row.bars if bar.kind == "prefill") for row in rows] == starts
    assert [mark.at for row in rows for mark in row.ends] == ends
    assert [sum(bar.kind in ("prefill", "decode") for bar in row.bars) for row in rows] == list(BATCH_LENGTHS)
