"""NCCL as a two-sided transport: both ranks on one device where NCCL allows that, else a rank that sends to itself."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from kv_transfer.config import TransferConfig
from kv_transfer.two_sided import TwoSidedTransport
from tests.contract.ends import MakeTransport
from tests.contract.transport_contract import TransportContract

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
def make_transport(nccl: Any) -> MakeTransport:
    if nccl.get_version() < SHARES_A_GPU and torch.cuda.device_count() < 2:
        pytest.skip(f"one device, and NCCL {nccl.get_version()} takes two ranks on one only from 2.30 on")
    from kv_transfer.nccl import NcclCommunicators

    config = TransferConfig(handshake_timeout_s=30.0)
    return lambda incarnation, cache, ring: TwoSidedTransport(
        incarnation, cache, NcclCommunicators(cache.tensor.get_device()), config
    )


class TestNcclTransport(TransportContract):
    DEVICES = tuple(f"cuda:{device}" for device in range(torch.cuda.device_count())) or ("cuda",)


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
