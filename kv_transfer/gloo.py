"""Gloo communicators: two processes and host memory, over TCP. What NCCL is with a GPU, this is without one.

A raw process group of two, with a store of the reader's own: torch's global group is left alone.
"""

from __future__ import annotations

import re
import socket
import threading
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore

from kv_transfer.communicator import End
from kv_transfer.transport import TransferFailed

TAG = 0


class Rendezvous(BaseModel):
    """Where the reader's store listens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    port: int = Field(ge=1, le=65535)


class GlooCommunicator:
    """Owns its process group, with all its threads and connections."""

    def __init__(self, group: Any, end: End) -> None:
        self._group = group
        self._other = 1 - end

    def send(self, tensor: Tensor, timeout_s: float) -> None:
        try:
            self._group.send([tensor], self._other, TAG).wait(timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise TransferFailed(f"gloo: {_what(error)}") from None

    def receive(self, tensor: Tensor, timeout_s: float) -> None:
        try:
            self._group.recv([tensor], self._other, TAG).wait(timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise TransferFailed(f"gloo: {_what(error)}") from None

    def abort(self) -> None:
        """The end of the group closes its connections and joins its threads."""
        del self._group


class GlooCommunicators:
    """Maintains the store that this worker's communicators are met at, as a reader, from the first one on."""

    name = "gloo"

    def __init__(self, host: str) -> None:
        """`host`: the worker's own address. Nothing listens elsewhere."""
        self._host = host
        self._lock = threading.Lock()
        self._store: Any = None

    def rendezvous(self) -> bytes:
        with self._lock:
            if self._store is None:
                self._store = _listening_store(self._host)
        return Rendezvous(host=self._host, port=self._store.port).model_dump_json().encode()

    def meet(self, communicator: bytes, rendezvous: bytes, end: End, timeout_s: float) -> GlooCommunicator:
        timeout = timedelta(seconds=timeout_s)
        try:
            place = Rendezvous.model_validate_json(rendezvous)
            store = TCPStore(place.host, place.port, 2, False, timeout, wait_for_workers=False)
            make: Any = ProcessGroupGloo  # whose stub knows no options
            options = make._Options()
            options._timeout = timeout
            options._threads = 1
            options._devices = [ProcessGroupGloo.create_device(hostname=self._host)]
            return GlooCommunicator(make(PrefixStore(communicator.hex(), store), int(end), 2, options), end)
        except (ValueError, RuntimeError) as error:
            raise TransferFailed(f"gloo: {_what(error)}") from None


def _listening_store(host: str) -> TCPStore:
    family = socket.getaddrinfo(host, None)[0][0]
    listener = socket.create_server((host, 0), family=family)
    port = listener.getsockname()[1]
    return TCPStore(host, port, 2, True, wait_for_workers=False, master_listen_fd=listener.detach())


def _what(error: Exception) -> str:
    """Without the place in Gloo's source and the peer's port before it, and its advice after it."""
    return re.sub(r"^\[[^\]]*\] (Read error \[[^\]]*\]:\d+: )?", "", str(error)).partition("\n")[0].partition(". ")[0]
