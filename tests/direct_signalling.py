"""A reader's way to a two-sided source in the same process, which loses and delays what a test says."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from kv_transfer.peer import PeerUnavailable
from kv_transfer.signalling import Invitation, SendOrder
from kv_transfer.transport import TransferFailed
from kv_transfer.two_sided import TwoSidedTransport


class DirectSignalling:
    """Maintains what was asked. Answers come at once, from the caller's own thread."""

    def __init__(self, source: TwoSidedTransport) -> None:
        self._source = source
        self.invitations: list[Invitation] = []
        self.orders: list[SendOrder] = []
        self.is_gone = False  # every call fails
        self.is_silent = False  # no call arrives, nor is it answered
        self.lose_answers = 0  # of sends, which arrive
        self.hold_sends = False  # until `let_go`
        self._held: list[Callable[[], None]] = []

    def join(self, invitation: Invitation) -> Future[None]:
        self.invitations.append(invitation)
        return self._call(lambda: self._source.join(invitation))

    def send(self, order: SendOrder) -> Future[None]:
        self.orders.append(order)
        if self.hold_sends:
            agreed: Future[None] = Future()
            self._held.append(lambda: _pass_on(self._call(lambda: self._source.send(order)), agreed))
            return agreed
        answer = self._call(lambda: self._source.send(order))
        if self.lose_answers:
            self.lose_answers -= 1
            return _failed(PeerUnavailable("the answer was lost"))
        return answer

    def let_go(self, *, last_first: bool = False) -> None:
        """What was held arrives now."""
        self.hold_sends = False
        held, self._held = self._held, []
        for deliver in reversed(held) if last_first else held:
            deliver()

    def _call(self, call: Callable[[], None]) -> Future[None]:
        if self.is_gone:
            return _failed(PeerUnavailable("nobody is there"))
        answer: Future[None] = Future()
        if self.is_silent:
            return answer
        try:
            call()
        except TransferFailed as error:
            return _failed(error)
        answer.set_result(None)
        return answer


def _failed(error: Exception) -> Future[None]:
    failed: Future[None] = Future()
    failed.set_exception(error)
    return failed


def _pass_on(answer: Future[None], to: Future[None]) -> None:
    error = answer.exception()
    if to.set_running_or_notify_cancel():
        to.set_exception(error) if error is not None else to.set_result(None)
