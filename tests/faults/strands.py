"""Threads that take turns with the event loop and wait in its time, so that two-sided transports run in virtual time.

One runs at a time while the loop stands still, and gives its turn back only where a thread would block. So what happens
depends on the program alone, and a minute of waiting costs nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from types import TracebackType
from unittest.mock import patch

from kv_transfer import read_end, send_end
from kv_transfer.signalling import Invitation, SendOrder, Signalling


class StrandKilled(BaseException):
    """Its process is dead."""


class Strand:
    """What `threading.Thread` is. Maintains: it runs only between `_resume` and the next `park`, or its end."""

    def __init__(self, strands: Strands, target: Callable[[], None], owner: str) -> None:
        self.owner = owner
        self._strands = strands
        self._target = target
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)  # the loop's
        self._timer: asyncio.TimerHandle | None = None
        self._parked = False
        self._woken = False
        self._killed = False
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._over = strands.Condition()

    def start(self) -> None:
        self._thread.start()
        self._parked = True
        self._strands.alive[self] = None
        self.wake()

    def is_alive(self) -> bool:
        return self in self._strands.alive

    def join(self, timeout_s: float | None = None) -> None:
        self._over.wait_for(lambda: not self.is_alive(), timeout_s)

    def park(self, timeout_s: float | None) -> bool:
        """Whether it was woken in time."""
        if self._killed:
            raise StrandKilled
        loop = self._strands.loop
        self._timer = None if timeout_s is None else loop.call_later(max(0.0, timeout_s), self._resume)
        self._parked, self._woken = True, False
        self._back.release()
        self._turn.acquire()
        if self._killed:
            raise StrandKilled
        return self._woken

    def wake(self) -> None:
        """At the loop's next turn."""
        if self._parked and not self._woken:
            self._woken = True
            if self._timer is not None:
                self._timer.cancel()
            self._strands.loop.call_soon_threadsafe(self._resume)

    def kill(self) -> None:
        """It does nothing more than to end."""
        self._killed = True
        self.wake()

    def _resume(self) -> None:
        """On the loop, which stands still until the next `park`."""
        if not self._parked:
            return
        self._parked = False
        self._strands.current = self
        self._turn.release()
        self._back.acquire()
        self._strands.current = None

    def _main(self) -> None:
        self._turn.acquire()
        try:
            if not self._killed:
                self._target()
        except StrandKilled:
            pass
        finally:
            del self._strands.alive[self]
            self._over.notify_all()
            self._back.release()


class StrandCondition:
    """What `threading.Condition` is; entering it excludes nobody, as only one runs at a time anyway."""

    def __init__(self, strands: Strands) -> None:
        self._strands = strands
        self._waiting: deque[Strand] = deque()

    def __enter__(self) -> bool:
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing was excluded."""

    def wait(self, timeout: float | None = None) -> bool:
        strand = self._strands.running()
        self._waiting.append(strand)
        try:
            return strand.park(timeout)
        finally:
            if strand in self._waiting:
                self._waiting.remove(strand)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        ends_at = None if timeout is None else self._strands.monotonic() + timeout
        while not predicate():
            left_s = None if ends_at is None else ends_at - self._strands.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            self.wait(left_s)
        return True

    def notify(self) -> None:
        if self._waiting:
            self._waiting.popleft().wake()

    def notify_all(self) -> None:
        while self._waiting:
            self.notify()


class StrandFuture(Future[None]):
    """Follows another future; waiting for it is a strand's waiting."""

    def __init__(self, strands: Strands, followed: Future[None]) -> None:
        super().__init__()
        self._followed = followed
        self._done = strands.Condition()
        followed.add_done_callback(self._follow)

    def result(self, timeout: float | None = None) -> None:
        self._done.wait_for(self.done, timeout)
        return super().result(0)

    def cancel(self) -> bool:
        self._followed.cancel()
        return super().cancel()

    def _follow(self, followed: Future[None]) -> None:
        if not self.done():
            if followed.cancelled():
                super().cancel()
            elif (error := followed.exception()) is not None:
                self.set_exception(error)
            else:
                self.set_result(None)
        self._done.notify_all()


class StrandSignalling:
    """Answers with futures that strands can wait for."""

    def __init__(self, signalling: Signalling, strands: Strands) -> None:
        self._signalling = signalling
        self._strands = strands

    def join(self, invitation: Invitation) -> Future[None]:
        return StrandFuture(self._strands, self._signalling.join(invitation))

    def send(self, order: SendOrder) -> Future[None]:
        return StrandFuture(self._strands, self._signalling.send(order))


class Strands:
    """What `threading` and `time` are to the ends of two-sided transports. Maintains those that have not ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.alive: dict[Strand, None] = {}  # in the order of their starts
        self.current: Strand | None = None
        self._owner = ""

    def running(self) -> Strand:
        """Raises RuntimeError on the loop, which must not block."""
        if self.current is None:
            raise RuntimeError("the event loop would block")
        return self.current

    def Thread(self, target: Callable[[], None], name: str = "", daemon: bool = True) -> Strand:  # noqa: N802
        return Strand(self, target, self._owner)

    def Condition(self) -> StrandCondition:  # noqa: N802
        return StrandCondition(self)

    def monotonic(self) -> float:
        return self.loop.time()

    def sleep(self, seconds: float) -> None:
        self.running().park(seconds)

    @contextmanager
    def owned_by(self, incarnation: str) -> Iterator[None]:
        """Whose the strands are that are made meanwhile."""
        self._owner = incarnation
        yield
        self._owner = ""

    def of(self, incarnation: str) -> list[Strand]:
        return [strand for strand in self.alive if strand.owner == incarnation]

    @contextmanager
    def in_place_of_threads(self) -> Iterator[None]:
        """The ends of two-sided transports that are made meanwhile have these for threads."""
        with ExitStack() as patches:
            for module in (read_end, send_end):
                patches.enter_context(patch.object(module, "threading", self))
                patches.enter_context(patch.object(module, "time", self))
            yield
