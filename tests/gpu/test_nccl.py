"""NCCL as a two-sided transport: both ranks on one device where NCCL allows that, else a rank that sends to itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kv_transfer.config import TransferConfig
from kv_transfer.two_sided import TwoSidedTransport
from tests.transport_contract import End, TransportContract, make_end

NewEnd = Callable[[str], End]
SHARES_A_GPU = 23000  # the first NCCL that lets two ranks do so, when asked


@pytest.fixture(scope="module")
def nccl() -> Any:
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"  # read when NCCL starts
    pytest.importorskip("cupy", reason="cupy-cuda12x is not installed")
    from cupy.cuda import nccl

    if not nccl.available:
        pytest.skip("cupy finds no libnccl.so.2: nvidia-nccl-cu12 is not installed")
    return nccl


@pytest.fixture
def new_end(nccl: Any) -> Iterator[NewEnd]:
    if nccl.get_version() < SHARES_A_GPU and torch.cuda.device_count() < 2:
        pytest.skip(f"one device, and NCCL {nccl.get_version()} takes two ranks on one only from 2.30 on")
    from kv_transfer.nccl import NcclCommunicators

    ends: list[End] = []

    def make(incarnation: str) -> End:
        device = len(ends) % torch.cuda.device_count()
        kind, config = NcclCommunicators(device), TransferConfig(handshake_timeout_s=30.0)
        ends.append(
            make_end(
                incarnation,
                lambda name, cache, ring: TwoSidedTransport(name, cache, kind, config),
                device=f"cuda:{device}",
            )
        )
        return ends[-1]

    yield make
    for end in ends:
        end.transport.close()


@pytest.fixture
def source(new_end: NewEnd) -> End:
    return new_end("P")


@pytest.fixture
def reader(new_end: NewEnd) -> End:
    return new_end("D")


class TestNcclTransport(TransportContract):
    pass


def test_a_rank_sends_to_itself(nccl: Any) -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    communicator = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    source = torch.arange(1 << 20, device="cuda").view(torch.uint8)
    arrived = torch.zeros_like(source)
    torch.cuda.synchronize()
    nccl.groupStart()
    communicator.send(source.data_ptr(), source.numel(), nccl.NCCL_UINT8, 0, stream.ptr)
    communicator.recv(arrived.data_ptr(), arrived.numel(), nccl.NCCL_UINT8, 0, stream.ptr)
    nccl.groupEnd()
    stream.synchronize()
    communicator.abort()
    assert torch.equal(arrived, source)
