"""Everything behind the two fronts: who exists, the links to them, the queue, and the requests that run.

`stop` lets what runs finish within the configured limit, then closes every link.
"""

from __future__ import annotations

import asyncio
import secrets

from proxy.config import ProxyConfig
from proxy.grammar.grammar_compiler import GrammarCompiler
from proxy.metrics import ProxyMetrics
from proxy.model import ServedModel
from proxy.routing.dispatcher import Dispatcher
from proxy.routing.prefix_index import PrefixIndex
from proxy.routing.router import Router
from proxy.service import GenerationService
from proxy.traffic.traffic_reporter import TrafficReporter
from proxy.traffic.traffic_tally import TrafficTally
from proxy.workers.membership import MembershipWatch
from proxy.workers.worker_link import LinkTimes
from proxy.workers.worker_pool import WorkerPool
from rpc import control_pb2
from security.channel_tls import ChannelTls
from telemetry.tracer import Tracer

DEFAULT_TIMES = LinkTimes()


class Core:
    """Maintains the membership watch; `ready_changed` is set whenever `service.is_ready` may be another."""

    def __init__(
        self,
        config: ProxyConfig,
        model: ServedModel,
        controller: str,
        times: LinkTimes = DEFAULT_TIMES,
        tls: ChannelTls | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`tls`: towards the controller and the workers; `tracer`: None where nothing is traced."""
        incarnation = secrets.token_hex(16)
        self.metrics = ProxyMetrics(model.name)
        index = PrefixIndex(config.prefix_index_blocks)
        self.metrics.watch_index(lambda: index.num_blocks)
        self.pool = WorkerPool(incarnation, times, index, tls=tls)
        self.ready_changed = asyncio.Event()
        self._config = config
        self._dispatcher = Dispatcher(self.pool, Router(self.pool, index, config, self.metrics), config)
        self._grammars = GrammarCompiler(model.tokenizer_file, model.eos_token_ids)
        self.traffic = TrafficTally(incarnation, asyncio.get_running_loop().time())
        self.service = GenerationService(
            model, config, self.pool, self._dispatcher, self.metrics, self._grammars, self.traffic, tracer
        )
        self._reporter = TrafficReporter(controller, self._report_traffic, tls)
        self.watch = MembershipWatch(controller, incarnation, self._update, tls=tls)
        self._watching: asyncio.Task[None] | None = None

    def _update(self, members: control_pb2.Members) -> None:
        self.pool.update(members.members, members.pool_nodes)
        self._reporter.asked_every(members.traffic_every_s)

    def _report_traffic(self) -> control_pb2.TrafficReport:
        return self.traffic.report(self.service.running, asyncio.get_running_loop().time())

    async def _follow_controller(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watch.run(), name="membership")
            tasks.create_task(self._reporter.run(), name="traffic reports")

    def start(self) -> asyncio.Task[None]:
        """The task that must not end before `stop`."""
        self.pool.subscribe(self._on_workers)
        self._watching = asyncio.create_task(self._follow_controller(), name="membership")
        return self._watching

    async def stop(self) -> None:
        self.service.stop_admitting()
        self.ready_changed.set()
        await self.service.drain(self._config.drain_timeout_s)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self.pool.close()
        self.service.close()
        await self._grammars.close()

    def _on_workers(self) -> None:
        self._dispatcher.pump()
        self.ready_changed.set()
