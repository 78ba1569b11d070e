"""What two-sided transports differ in: how two workers build a communicator, and how its bytes are sent and received.

Everything above it is shared, so what runs without a GPU is what runs with one.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from torch import Tensor


class End(IntEnum):
    """Each side's rank."""

    READER = 0
    SOURCE = 1


class Communicator(Protocol):
    """Carries bytes from the source to the reader, in order. Belongs to one thread, which each call blocks.

    A call that raises TransferFailed leaves it useless: only `abort` may follow.
    """

    def send(self, tensor: Tensor, timeout_s: float) -> None:
        """Returns once the tensor may be written again."""
        ...

    def receive(self, tensor: Tensor, timeout_s: float) -> None:
        """Returns once all of the tensor is there. The source sends just as many bytes."""
        ...

    def abort(self) -> None:
        """Ends it, in use or not: when this returns, nothing reads or writes any tensor that it was given."""
        ...


class CommunicatorKind(Protocol):
    """One worker's way of building communicators of one kind. Any thread may call."""

    @property
    def name(self) -> str: ...

    def rendezvous(self) -> bytes:
        """For the reader of a new communicator: what both sides need to meet."""
        ...

    def meet(self, communicator: bytes, rendezvous: bytes, end: End, timeout_s: float) -> Communicator:
        """Blocks until the other side is there. Raises TransferFailed."""
        ...
