"""The controller's metrics: who is there, who should be, and how pools were changed; read when they are scraped.

`role` is the pool that a series is about. A worker that is gone takes its series with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.controller import Controller
from cluster.fleet_worker import WorkerState
from cluster.roles import RoleName
from cluster.scale_events import ScaleEvent
from security.address import join_host_port


class ControlMetrics(Collector):
    """Maintains nothing. Scrapes come from another thread, so each collection is copied before it is walked."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._model_name = controller.spec.model_name

    def collect(self) -> Iterator[Metric]:
        fleet, events = self._controller.fleet, self._controller.scale_events
        present, desired = list(fleet.workers.values()), dict(fleet.desired)
        states = Counter((worker.role, worker.state) for worker in present)
        workers = GaugeMetricFamily("pdserve_workers", "Workers by state", labels=["model_name", "role", "state"])
        for role in desired:
            for state in WorkerState:
                workers.add_metric([self._model_name, role, state.value], states[role, state])
        wanted = GaugeMetricFamily("pdserve_desired_workers", "Workers wanted", labels=["model_name", "role"])
        for role, number in desired.items():
            wanted.add_metric([self._model_name, role], number)
        names = ["model_name", "role", "worker"]
        restarts = CounterMetricFamily("pdserve_worker_restarts", "Starts of a worker after its first", labels=names)
        for worker in present:
            restarts.add_metric([self._model_name, worker.role, worker.name], worker.num_restarts)
        flips = CounterMetricFamily("pdserve_role_flips", "Workers that were given another role", labels=["model_name"])
        flips.add_metric([self._model_name], events.num_role_flips)
        yield from (workers, wanted, restarts, flips, self._scale_events(dict(events.counts), list(desired)))

    def _scale_events(self, counts: dict[ScaleEvent, int], roles: list[RoleName]) -> Metric:
        """With a zero for each pool and direction, so that the first change is seen as one."""
        text = "Changes of a pool's wanted size, by why"
        family = CounterMetricFamily("pdserve_scale_events", text, labels=["model_name", "role", "direction", "reason"])
        zeros = {ScaleEvent(role, direction, "operator"): 0 for role in roles for direction in ("up", "down")}
        for event, number in {**zeros, **counts}.items():
            family.add_metric([self._model_name, event.role, event.direction, event.reason], number)
        return family


@dataclass(frozen=True, slots=True)
class ControlMetricsServer:
    """A port that the controller's metrics are read at, from `start` to `stop`."""

    address: str  # host:port
    _server: WSGIServer
    _thread: Thread

    @classmethod
    def start(cls, controller: Controller) -> ControlMetricsServer:
        """At a free port of the cluster's host. Raises OSError."""
        host = controller.spec.host
        registry = CollectorRegistry()
        registry.register(ControlMetrics(controller))
        server, thread = start_http_server(0, addr=host, registry=registry)
        return cls(join_host_port(host, server.server_port), server, thread)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
