"""The source's end of one communicator: sends what it has agreed to, in the order of the numbers, from its own buffer.

On a thread of its own, which sleeps while nothing is due.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from engine.kv_cache import KVCache
from kv_transfer.communicator import Communicator, CommunicatorKind, End
from kv_transfer.config import TransferConfig
from kv_transfer.signalling import Invitation, SendOrder
from kv_transfer.transport import TransferFailed

logger = logging.getLogger(__name__)

MAX_AHEAD = 64  # numbers after the one that is due; a reader asks for fewer


class SendEnd:
    """Maintains: what was agreed to is sent, once and in order, or the communicator ends. Its buffer goes with it.

    `on_ended` is called once, in the thread.
    """

    def __init__(
        self,
        kind: CommunicatorKind,
        invitation: Invitation,
        cache: KVCache,
        config: TransferConfig,
        on_ended: Callable[[SendEnd], None],
    ) -> None:
        self.invitation = invitation
        self._kind = kind
        self._cache = cache
        self._config = config
        self._on_ended = on_ended
        device = cache.tensor.device
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._changed = threading.Condition()  # guards all that follows
        self._agreed: dict[int, SendOrder] = {}
        self._next_sequence = 0
        self._is_closing = False
        self._ended: str | None = None
        self._thread = threading.Thread(target=self._main, name=f"{kind.name}-source", daemon=True)
        self._thread.start()

    def send(self, order: SendOrder) -> None:
        """Agrees, or raises TransferFailed. Agreeing twice is agreeing once."""
        self._check(order)
        with self._changed:
            if self._ended is not None:
                raise TransferFailed(self._ended)
            if order.sequence < self._next_sequence:
                return
            if order.sequence > self._next_sequence + MAX_AHEAD:
                raise TransferFailed(f"entry {order.sequence} is too far ahead: {self._next_sequence} is due")
            if self._agreed.setdefault(order.sequence, order) != order:
                raise TransferFailed(f"entry {order.sequence} was agreed on with other blocks")
            self._changed.notify()

    def close(self) -> None:
        """It ends after what it has agreed to."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _check(self, order: SendOrder) -> None:
        wrong = [block for block in order.blocks if not 0 <= block < self._cache.num_blocks]
        if wrong:
            raise TransferFailed(f"{self.invitation.source} has no blocks {wrong}")
        if len(order.blocks) > self._cache.num_blocks:
            raise TransferFailed(f"{len(order.blocks)} blocks are more than {self.invitation.source} has")
        try:
            order.part.within(self._cache.block_bytes)
        except ValueError as error:
            raise TransferFailed(str(error)) from None

    def _main(self) -> None:
        reader = self.invitation.reader
        try:
            communicator = self._meet()
        except Exception as error:  # noqa: BLE001  whatever it was, the reader learns it by its own deadline
            logger.warning("no %s communicator with %s: %s", self._kind.name, reader, error)
            self._end(f"no communicator with {reader}: {error}")
            return
        try:
            while (order := self._next()) is not None:
                self._send(communicator, order)
            reason = f"the communicator with {reader} has ended"
        except TransferFailed as error:
            logger.warning("the %s communicator with %s was aborted: %s", self._kind.name, reader, error)
            reason = f"the communicator with {reader} was aborted: {error}"
        except Exception as error:
            logger.exception("the %s source failed", self._kind.name)
            reason = f"the communicator with {reader} was aborted: {type(error).__name__}: {error}"
        self._end(reason)
        communicator.abort()

    def _meet(self) -> Communicator:
        invitation = self.invitation
        timeout_s = self._config.handshake_timeout_s
        return self._kind.meet(invitation.communicator, invitation.rendezvous, End.SOURCE, timeout_s)

    def _next(self) -> SendOrder | None:
        """What is due; None at the end, which is also when nothing was asked for longer than any reader is idle."""
        idle_at = time.monotonic() + 2 * self._config.idle_peer_s
        with self._changed:
            while self._next_sequence not in self._agreed:
                if self._is_closing or time.monotonic() >= idle_at:
                    return None
                self._changed.wait(idle_at - time.monotonic())
            order = self._agreed.pop(self._next_sequence)
            self._next_sequence += 1
            return order

    def _send(self, communicator: Communicator, order: SendOrder) -> None:
        payload = self._gather(order)
        header = torch.tensor(list(order.header(self._cache.block_bytes)), dtype=torch.uint8, device=payload.device)
        timeout_s = self._config.read_timeout_s(len(payload))
        communicator.send(header, timeout_s)
        communicator.send(payload, timeout_s)

    def _gather(self, order: SendOrder) -> Tensor:
        part = order.part.within(self._cache.block_bytes)
        num_bytes = len(order.blocks) * len(part)
        if len(self._buffer) < num_bytes:
            self._buffer = self._buffer.new_empty(num_bytes)
        rows = self._cache.as_bytes()[:, part.start : part.stop]
        with torch.cuda.stream(self._stream):  # without one, nothing
            for i, block in enumerate(order.blocks):
                self._buffer[i * len(part) : (i + 1) * len(part)].copy_(rows[block])
        if self._stream is not None:
            self._stream.synchronize()
        return self._buffer[:num_bytes]

    def _end(self, reason: str) -> None:
        with self._changed:
            self._ended = reason
            self._agreed.clear()
        self._on_ended(self)
