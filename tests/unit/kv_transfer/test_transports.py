"""Which transports a worker has."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from kv_transfer.config import TransferConfig
from kv_transfer.transports import transport_names

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("transports", "device", "has_cupy", "expected"),
    [
        ("auto", CPU, True, ("nixl",)),
        ("auto", CUDA, False, ("nixl",)),
        ("auto", CUDA, True, ("nccl", "nixl")),
        (["gloo", "nixl"], CPU, False, ("gloo", "nixl")),
        (["nccl"], CUDA, False, ("nccl",)),  # and then says what is missing
    ],
)
def test_are_those_that_are_named_or_that_the_machine_offers(
    transports: object, device: torch.device, has_cupy: bool, expected: tuple[str, ...]
) -> None:
    config = TransferConfig.model_validate({"transports": transports})
    assert transport_names(config, device, has_cupy) == expected


@pytest.mark.parametrize(("name", "device", "message"), [("gloo", CUDA, "host memory"), ("nccl", CPU, "not cpu")])
def test_that_cannot_move_the_devices_memory_are_refused(name: str, device: torch.device, message: str) -> None:
    config = TransferConfig.model_validate({"transports": [name]})
    with pytest.raises(ValueError, match=message):
        transport_names(config, device, has_cupy=True)


@pytest.mark.parametrize("transports", [[], ["nixl", "nixl"], ["tcp"], "nixl"])
def test_that_are_none_or_named_twice_are_refused(transports: object) -> None:
    with pytest.raises(ValidationError):
        TransferConfig.model_validate({"transports": transports})
