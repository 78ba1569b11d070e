"""A turn that one at a time has, and for which tenants queue in a circle: nobody waits for all of another's."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque


class FairTurn:
    """Maintains who waits, by tenant. Belongs to one event loop."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # the next tenant first

    async def acquire(self, tenant: str) -> None:
        """A caller that is cancelled has not got it."""
        if not self._is_taken:
            self._is_taken = True
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            tenant, line = self._waiting.popitem(last=False)
            waiter = line.popleft()
            if line:
                self._waiting[tenant] = line  # again, behind the others
            if not waiter.done():
                waiter.set_result(None)
                return
        self._is_taken = False
