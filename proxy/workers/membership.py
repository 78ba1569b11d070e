"""The controller's membership, watched: every new one goes to the worker pool.

While the controller is away the last one stays. A watch is renewed each minute, so that a connection that died without
a word is noticed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import grpc

from proxy.workers.channel import open_channel
from rpc import control_pb2, control_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION
from security.channel_tls import ChannelTls

FIRST_ANSWER_S = 5.0
RENEW_S = 60.0
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.2, 3.0
logger = logging.getLogger(__name__)


class ControllerGone(Exception):
    """The watch ended without an error of its own."""


class MembershipWatch:
    """Maintains the stream, and what the controller says of itself; `on_members` gets each membership, whole."""

    def __init__(
        self,
        controller: str,
        proxy_incarnation: str,
        on_members: Callable[[control_pb2.Members], None],
        first_answer_s: float = FIRST_ANSWER_S,
        renew_s: float = RENEW_S,
        tls: ChannelTls | None = None,
    ) -> None:
        self._controller = controller
        self._tls = tls
        self._request = control_pb2.WatchRequest(protocol_version=PROTOCOL_VERSION, proxy_incarnation=proxy_incarnation)
        self._on_members = on_members
        self._first_answer_s = first_answer_s
        self._renew_s = renew_s
        self._is_away = False
        self._metrics_address = ""

    @property
    def is_away(self) -> bool:
        """The controller, as far as is known."""
        return self._is_away

    @property
    def metrics_address(self) -> str:
        """host:port of the controller's own metrics; empty while it has not said."""
        return self._metrics_address

    async def run(self) -> None:
        """Watches until cancelled."""
        backoff = FIRST_BACKOFF_S
        while True:
            try:
                await self._watch()
                backoff = FIRST_BACKOFF_S
                continue
            except TimeoutError:
                reason = f"no answer within {self._first_answer_s:g} s"
            except ControllerGone as gone:
                reason = str(gone)
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            self._say_away(reason)
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
            backoff = min(2 * backoff, LAST_BACKOFF_S)

    async def _watch(self) -> None:
        """Returns when it is time to renew. Raises ControllerGone or AioRpcError when the stream ends before,
        TimeoutError without an answer."""
        async with open_channel(self._controller, self._tls) as channel:
            call = control_pb2_grpc.MembershipStub(channel).Watch(self._request)
            try:
                async with asyncio.timeout(self._first_answer_s):
                    members = await call.read()
                await self._follow(call, members)
            finally:
                call.cancel()

    async def _follow(self, call: Any, members: Any) -> None:
        try:
            async with asyncio.timeout(self._renew_s):
                while members is not grpc.aio.EOF:
                    self._take(members)
                    members = await call.read()
        except TimeoutError:
            return
        raise ControllerGone("it ended the stream")

    def _take(self, members: control_pb2.Members) -> None:
        if self._is_away:
            logger.info("the controller at %s is back", self._controller)
        self._is_away = False
        self._metrics_address = members.metrics_address
        self._on_members(members)

    def _say_away(self, reason: str) -> None:
        if not self._is_away:
            logger.warning(
                "the controller at %s is away (%s): serving on the last membership", self._controller, reason
            )
        self._is_away = True
