"""The workers that this proxy can reach: a link to each member, opened and closed as the membership changes.

A member that is gone from the membership gets nothing new; its link closes when its requests ended, at the latest after
`GRACE_S`, or at once when another incarnation has its name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from proxy.routing.prefix_index import PrefixIndex
from proxy.workers.worker_link import LinkTimes, WorkerLink
from proxy.workers.worker_service import DECODE, PREFILL, Service
from rpc import control_pb2, worker_pb2
from security.channel_tls import ChannelTls

GRACE_S = 30.0
SERVICES = {worker_pb2.ROLE_PREFILL: PREFILL, worker_pb2.ROLE_DECODE: DECODE, worker_pb2.ROLE_MIXED: DECODE}
STATES_WITH_A_LINK = (control_pb2.WORKER_READY, control_pb2.WORKER_DRAINING)
logger = logging.getLogger(__name__)


class WorkerPool:
    """Maintains one `WorkerLink` and its task per living member. `on_change` is called after each change of either."""

    def __init__(
        self,
        proxy_incarnation: str,
        times: LinkTimes,
        index: PrefixIndex,
        grace_s: float = GRACE_S,
        tls: ChannelTls | None = None,
    ) -> None:
        self.members: tuple[control_pb2.Member, ...] = ()
        self.pool_nodes: tuple[control_pb2.Member, ...] = ()  # of the KV pool; no links go there
        self._proxy_incarnation = proxy_incarnation
        self._times = times
        self._index = index  # of what the workers' caches hold
        self._grace_s = grace_s
        self._tls = tls
        self._on_change: Callable[[], None] = lambda: None
        self._links: dict[str, WorkerLink] = {}  # by incarnation
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: dict[str, asyncio.TimerHandle] = {}

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    def prefill_links(self) -> list[WorkerLink]:
        """Of the prefill workers that take new requests."""
        return self._usable(PREFILL)

    def decode_links(self) -> list[WorkerLink]:
        """Of the decode and mixed workers that take new requests."""
        return self._usable(DECODE)

    def link(self, incarnation: str) -> WorkerLink | None:
        """None: there is none, as to a worker that starts."""
        return self._links.get(incarnation)

    def ready_nodes(self) -> tuple[worker_pb2.PoolMember, ...]:
        """The KV pool's, as workers are told."""
        return tuple(
            worker_pb2.PoolMember(name=node.worker, incarnation=node.incarnation, address=node.address)
            for node in self.pool_nodes
            if node.state == control_pb2.WORKER_READY
        )

    @property
    def max_model_len(self) -> int | None:
        """The least that a worker which stays allows one request, whether its link is up just now or not; None while
        no worker has said so."""
        stays = (link for link in self._links.values() if link.member.state == control_pb2.WORKER_READY)
        return min((link.max_model_len for link in stays if link.max_model_len is not None), default=None)

    @property
    def is_ready(self) -> bool:
        """Whether a generation can work, and does not miss a prefill worker that is about to be reached."""
        connecting = any(not link.was_tried for link in self._links.values())
        return bool(self.decode_links()) and not connecting

    def is_member(self, incarnation: str) -> bool:
        """Whether the membership has this incarnation, alive."""
        return incarnation in self._links and incarnation not in self._leaving

    def is_out_of_reach(self, incarnation: str) -> bool:
        """Whether it is a member and its link is down: it died, or only the link did."""
        return self.is_member(incarnation) and not self._links[incarnation].is_up

    def update(self, members: Iterable[control_pb2.Member], pool_nodes: Iterable[control_pb2.Member] = ()) -> None:
        """Follows a new membership."""
        self.members, self.pool_nodes = tuple(members), tuple(pool_nodes)
        living = {m.incarnation: m for m in self.members if m.state in STATES_WITH_A_LINK and m.role in SERVICES}
        names = {member.worker for member in self.members}
        for incarnation, member in living.items():
            if incarnation in self._links:
                self._links[incarnation].update_member(member)
                self._stay(incarnation)
            else:
                self._open(member)
        for incarnation, link in list(self._links.items()):
            if incarnation not in living:
                self._leave(link, at_once=link.worker in names)
        self._on_change()

    def close_idle(self) -> None:
        """Closes the links of members that left and have nothing to do any more."""
        for incarnation in list(self._leaving):
            if not self._links[incarnation].num_requests:
                self._shut(incarnation)

    async def close(self) -> None:
        """Ends all links; the workers abort what is left of this proxy's requests."""
        tasks = list(self._tasks.values())
        for incarnation in list(self._links):
            self._shut(incarnation)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _open(self, member: control_pb2.Member) -> None:
        link = WorkerLink(
            member, SERVICES[member.role], self._proxy_incarnation, self._changed, self._times, self._index, self._tls
        )
        self._links[member.incarnation] = link
        self._tasks[member.incarnation] = asyncio.create_task(link.run(), name=f"link to {member.worker}")

    def _leave(self, link: WorkerLink, *, at_once: bool) -> None:
        incarnation = link.incarnation
        if at_once or not link.num_requests:
            self._shut(incarnation)
        elif incarnation not in self._leaving:
            text = "%s left with %d requests: it has %g s to end them"
            logger.info(text, link.worker, link.num_requests, self._grace_s)
            gone = control_pb2.Member()
            gone.CopyFrom(link.member)
            gone.state = control_pb2.WORKER_DRAINING
            link.update_member(gone)
            self._leaving[incarnation] = asyncio.get_running_loop().call_later(self._grace_s, self._shut, incarnation)

    def _stay(self, incarnation: str) -> None:
        timer = self._leaving.pop(incarnation, None)
        if timer is not None:
            timer.cancel()

    def _shut(self, incarnation: str) -> None:
        self._stay(incarnation)
        self._links.pop(incarnation)
        self._index.forget(incarnation)
        self._tasks.pop(incarnation).cancel()

    def _changed(self) -> None:
        self.close_idle()
        self._on_change()

    def _usable(self, service: Service) -> list[WorkerLink]:
        """Without those that failed what they got, as long as there are others."""
        links = [link for link in self._links.values() if link.service is service and link.is_usable]
        return [link for link in links if not link.breaker.advises_against] or links
