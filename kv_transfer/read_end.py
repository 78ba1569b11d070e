"""The reader's end of one communicator: asks the source for one entry after the other, and receives them in that order.

A read is asked for when few others are, on whatever thread that happens; all else is done on a thread of its own, which
sleeps while there is nothing to receive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from os import urandom

import torch

from kv_transfer.block_part import BlockPart
from kv_transfer.communicator import Communicator, CommunicatorKind, End
from kv_transfer.config import TransferConfig
from kv_transfer.peer import PeerUnavailable
from kv_transfer.signalling import HEADER, NAME_BYTES, Invitation, SendOrder, Signalling
from kv_transfer.staging import Slot
from kv_transfer.transport import TransferFailed

logger = logging.getLogger(__name__)

MAX_ASKED = 2  # one is received while the source prepares the next; the others can still be overtaken
SEND_TRIES = 3  # within transfer_timeout_s, when answers are lost
RETRY_AFTER_S = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    blocks: tuple[int, ...]
    part: BlockPart
    slot: Slot
    order: float
    future: Future[None]


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A read that the source was asked for; `agreed` is its answer."""

    read: Read
    send: SendOrder
    agreed: Future[None]


class ReadEnd:
    """Maintains: a read that the source may have agreed to is received, whoever wants it, or the communicator ends.

    Reads are resolved only after what they wait for: their own bytes, or the end of the communicator. `ready` is
    resolved once it is built. `on_failed` is called in the thread, before any read fails, unless it was asked to end.
    It waits for the end of `after`, an older one with the same source, which lets go of that when it is asked anew.
    """

    def __init__(
        self,
        kind: CommunicatorKind,
        me: str,
        peer: str,
        block_bytes: int,
        device: torch.device,
        signalling: Signalling,
        config: TransferConfig,
        on_failed: Callable[[ReadEnd], None],
        after: ReadEnd | None = None,
    ) -> None:
        self.ready: Future[None] = Future()
        self._kind = kind
        self._me = me
        self._peer = peer
        self._block_bytes = block_bytes
        self._signalling = signalling
        self._config = config
        self._on_failed = on_failed
        self._after = after
        self._name = urandom(NAME_BYTES)
        self._header = torch.empty(HEADER.size, dtype=torch.uint8, device=device)
        self._changed = threading.Condition()  # guards all that follows
        self._waiting: list[Read] = []
        self._asked: deque[Asked] = deque()
        self._next_sequence = 0
        self._is_built = False
        self._is_closing = False
        self._ended: str | None = None
        self._thread = threading.Thread(target=self._main, name=f"{kind.name}-reader", daemon=True)
        self._thread.start()

    def read(self, read: Read) -> bool:
        """False when it has ended and takes no more."""
        with self._changed:
            if self._ended is not None:
                return False
            self._waiting.append(read)
            self._ask()
            self._changed.notify()
            return True

    def close(self) -> None:
        """It takes no more reads, and ends after those that it has."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    def _main(self) -> None:
        try:
            communicator = self._meet()
        except Exception as error:  # noqa: BLE001  handed to those who wait
            self._end(f"no communicator with {self._peer}: {_text(error)}")
            return
        with self._changed:
            self._is_built = True
        self.ready.set_result(None)
        try:
            while (asked := self._next()) is not None:
                self._receive(communicator, asked)
            reason = f"{self._peer} is not connected"
        except Exception as error:
            if not isinstance(error, TransferFailed):
                logger.exception("the %s reader failed", self._kind.name)
            reason = f"the communicator with {self._peer} was aborted: {_text(error)}"
        try:
            communicator.abort()
        except Exception:
            logger.exception("a %s communicator could not be aborted: its read stays in doubt", self._kind.name)
            with self._changed, suppress(IndexError):
                self._asked.popleft()
        self._end(reason)

    def _meet(self) -> Communicator:
        if self._after is not None:
            self._after.join()
            self._after = None
        deadline = time.monotonic() + self._config.handshake_timeout_s
        rendezvous = self._kind.rendezvous()
        invitation = Invitation(self._kind.name, self._name, self._me, self._peer, rendezvous)
        joined = self._signalling.join(invitation)
        try:
            joined.result(self._config.handshake_timeout_s)
        except TimeoutError:
            joined.cancel()
            raise TransferFailed(f"no answer in {self._config.handshake_timeout_s:g} s") from None
        return self._kind.meet(self._name, rendezvous, End.READER, max(0.001, deadline - time.monotonic()))

    def _next(self) -> Asked | None:
        """What is to be received next; None at the end, which is also when nobody reads for `idle_peer_s`."""
        with self._changed:
            self._ask()
            while not self._asked:
                if self._is_closing:
                    return None
                if not self._changed.wait(self._config.idle_peer_s) and not self._asked:
                    self._ended = f"nothing was read from {self._peer} for {self._config.idle_peer_s:g} s"
                    return None
            return self._asked[0]

    def _ask(self) -> None:
        while self._is_built and self._waiting and len(self._asked) < MAX_ASKED:
            read = min(self._waiting, key=lambda read: read.order)
            self._waiting.remove(read)
            order = SendOrder(self._kind.name, self._name, self._next_sequence, read.blocks, read.part)
            self._next_sequence += 1
            self._asked.append(Asked(read, order, self._signalling.send(order)))

    def _receive(self, communicator: Communicator, asked: Asked) -> None:
        self._agree(asked)
        expected = asked.send.header(self._block_bytes)
        _, _, num_bytes, _ = HEADER.unpack(expected)
        timeout_s = self._config.read_timeout_s(num_bytes)
        communicator.receive(self._header, timeout_s)
        if bytes(self._header.tolist()) != expected:
            raise TransferFailed(f"what {self._peer} sent is not entry {asked.send.sequence} as it was agreed")
        communicator.receive(asked.read.slot.memory[:num_bytes], timeout_s)
        with self._changed:
            self._asked.popleft()
            self._ask()
        asked.read.future.set_result(None)

    def _agree(self, asked: Asked) -> None:
        """Returns once the source has said that it sends this entry; asks again when the answer is lost."""
        agreed, lost = asked.agreed, ""
        for _ in range(SEND_TRIES):
            try:
                agreed.result(self._config.transfer_timeout_s / SEND_TRIES)
                return
            except TimeoutError:
                agreed.cancel()
                lost = "no answer"
            except (PeerUnavailable, RuntimeError, CancelledError) as error:
                lost = str(error)
                time.sleep(RETRY_AFTER_S)
            agreed = self._signalling.send(asked.send)
        raise TransferFailed(f"{self._peer} could not be asked for entry {asked.send.sequence}: {lost}")

    def _end(self, reason: str) -> None:
        """Nothing can touch any slot any more."""
        with self._changed:
            self._ended = reason
            left = [asked.read for asked in self._asked] + self._waiting
            for asked in self._asked:
                asked.agreed.cancel()  # nobody waits for the answer any more
            self._asked.clear()
            self._waiting.clear()
            is_closing = self._is_closing
        if not is_closing:
            self._on_failed(self)
        if not self.ready.done():
            self.ready.set_exception(TransferFailed(reason))
        for read in left:
            read.future.set_exception(TransferFailed(reason))


def _text(error: Exception) -> str:
    if isinstance(error, TransferFailed | PeerUnavailable):
        return str(error)
    return f"{type(error).__name__}: {error}"
