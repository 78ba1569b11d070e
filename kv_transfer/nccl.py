"""NCCL communicators: two GPUs of one node, over cupy, each communicator with a stream of its own.

NCCL's calls have no deadline, so what may block is left to a thread that can be left behind, and the rest is polled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import cupy
import torch
from cupy.cuda import nccl
from torch import Tensor

from kv_transfer.communicator import End
from kv_transfer.transport import TransferFailed

UNIQUE_ID_BYTES = 128  # as in nccl.h
POLL_S = 0.0001  # while something is under way


class NcclCommunicator:
    """Owns a communicator of two ranks, and its stream."""

    def __init__(self, communicator: Any, device: Any, end: End) -> None:
        self._communicator = communicator
        self._device = device
        self._other = 1 - end
        with device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._done = cupy.cuda.Event(disable_timing=True)

    def send(self, tensor: Tensor, timeout_s: float) -> None:
        self._run(self._communicator.send, tensor, timeout_s)

    def receive(self, tensor: Tensor, timeout_s: float) -> None:
        self._run(self._communicator.recv, tensor, timeout_s)

    def abort(self) -> None:
        """NCCL's kernels see the abort and end; the stream says when they have."""
        with self._device:
            self._communicator.abort()
            self._stream.synchronize()

    def _run(self, call: Callable[..., None], tensor: Tensor, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        try:
            with self._device:
                call(tensor.data_ptr(), tensor.numel(), nccl.NCCL_UINT8, self._other, self._stream.ptr)
                self._done.record(self._stream)
                while not self._done.done:
                    self._communicator.check_async_error()
                    if time.monotonic() >= deadline:
                        raise TransferFailed(f"nccl: not done in {timeout_s:g} s")
                    time.sleep(POLL_S)
        except (nccl.NcclError, cupy.cuda.runtime.CUDARuntimeError) as error:
            raise TransferFailed(f"nccl: {error}") from error


class NcclCommunicators:
    """Maintains nothing."""

    name = "nccl"

    def __init__(self, device_index: int) -> None:
        if not nccl.available:
            raise ImportError("cupy finds no libnccl.so.2: install nvidia-nccl-cu12")
        self._device = cupy.cuda.Device(device_index)

    def rendezvous(self) -> bytes:
        return bytes(nccl.get_unique_id())

    def meet(self, communicator: bytes, rendezvous: bytes, end: End, timeout_s: float) -> NcclCommunicator:
        if len(rendezvous) != UNIQUE_ID_BYTES:
            raise TransferFailed(f"nccl: an id of {len(rendezvous)} bytes")
        built: Future[NcclCommunicator] = Future()
        threading.Thread(
            target=self._build, args=(rendezvous, end, timeout_s, built), name="nccl-build", daemon=True
        ).start()
        try:
            return built.result(timeout_s)
        except TimeoutError:
            built.cancel()
            raise TransferFailed(f"nccl: the two did not meet in {timeout_s:g} s") from None

    def _build(self, unique_id: bytes, end: End, timeout_s: float, built: Future[NcclCommunicator]) -> None:
        """One byte is carried before it counts as built: NCCL connects with the first, and may block for that."""
        try:
            with self._device:
                made = NcclCommunicator(nccl.NcclCommunicator(2, unique_id, int(end)), self._device, end)
            byte = torch.zeros(1, dtype=torch.uint8, device=f"cuda:{self._device.id}")
            try:
                (made.send if end is End.SOURCE else made.receive)(byte, timeout_s)
            except TransferFailed:
                made.abort()
                raise
        except Exception as error:  # noqa: BLE001  handed to whoever waits
            if built.set_running_or_notify_cancel():
                built.set_exception(TransferFailed(f"nccl: {error}"))
            return
        if built.set_running_or_notify_cancel():
            built.set_result(made)
        else:
            made.abort()
