"""Two workers that cannot share KV say why."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from kv_transfer.messages import Compatibility

OURS = Compatibility(
    protocol_version=1,
    model_fingerprint="abc",
    kv_dtype="float32",
    block_size=16,
    num_layers=30,
    num_kv_heads=3,
    head_dim=64,
)


def test_equal_workers_can_share() -> None:
    assert OURS.mismatch(replace(OURS)) is None


@pytest.mark.parametrize("name", [field.name for field in fields(Compatibility)])
def test_the_field_that_differs_is_named_with_both_values(name: str) -> None:
    theirs: Any = "other" if isinstance(getattr(OURS, name), str) else 99
    assert (
        OURS.mismatch(replace(OURS, **{name: theirs}))
        == f"{name} is {getattr(OURS, name)} here and {theirs} on the peer"
    )


def test_it_can_be_read_from_any_object_with_these_attributes() -> None:
    theirs = replace(OURS, tensor_parallel_size=2)
    assert Compatibility.read_from(SimpleNamespace(**asdict(theirs), other=1)) == theirs
