"""Tells the controller what came to this proxy, as often as it asks for it; while it does not ask, nothing is sent.

A report that does not arrive is lost: nothing here waits for the controller, and no request notices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc

from proxy.workers.channel import open_channel
from rpc import control_pb2, control_pb2_grpc
from security.channel_tls import ChannelTls

ANSWER_S = 2.0
logger = logging.getLogger(__name__)


class TrafficReporter:
    """Maintains the connection while reports are asked for."""

    def __init__(
        self, controller: str, make_report: Callable[[], control_pb2.TrafficReport], tls: ChannelTls | None = None
    ) -> None:
        self._controller = controller
        self._make_report = make_report
        self._tls = tls
        self._every_s = 0.0
        self._asked = asyncio.Event()

    def asked_every(self, every_s: float) -> None:
        """The controller's newest word; 0: no reports."""
        self._every_s = every_s
        if every_s > 0:
            self._asked.set()
        else:
            self._asked.clear()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._asked.wait()
            self._make_report()  # what came before anybody asked
            async with open_channel(self._controller, self._tls) as channel:
                stub = control_pb2_grpc.MembershipStub(channel)
                while self._asked.is_set():
                    await asyncio.sleep(self._every_s)
                    await self._report(stub)

    async def _report(self, stub: control_pb2_grpc.MembershipStub) -> None:
        try:
            await stub.ReportTraffic(self._make_report(), timeout=ANSWER_S)
        except grpc.aio.AioRpcError as error:
            logger.debug("the controller did not take a report: %s", error.code().name)
