"""Real processes whose gRPC is spoiled: two workers of each role and perhaps two pool nodes, each behind a relay."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

from kv_transfer.messages import FailureReason
from tests.faults.fault import Fault, Faults
from tests.faults.grpc_relay import GrpcRelay
from tests.faults.real_plan import NODE_BYTES, REQUEST_S, Mishap, RealPlan, RealResult
from tests.integration.processes import Processes, WorkerProcess, wait_until

T = TypeVar("T")
HANDOFF_FAILED = re.compile(r"request \S+ attempt \d+: (\w+): ")
IDLE_WITHIN_S = 40.0


class LoopThread:
    """An event loop in a thread of its own, for the relays."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="relays", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class RealCluster:
    """Maintains what it started, each part under its name in whatever incarnation, until `stop`."""

    def __init__(self, plan: RealPlan, faults: Faults, result: RealResult) -> None:
        self.processes = Processes(plan.model_dir, plan.log_dir, engine=plan.engine, kv_transfer=plan.kv_transfer)
        self._plan = plan
        self._faults = faults
        self._result = result
        self._loop = LoopThread()
        self._relays: dict[str, GrpcRelay] = {}  # by worker or node
        self._offered_at: dict[str, str] = {}  # a worker's relay, by its own address: there nodes find who offers
        self._spoils = False

    @property
    def grpc(self) -> str:
        return self.processes.grpc

    def start(self) -> None:
        self.processes.start_workers(prefill=2, decode=2)
        for number in range(2 if self._plan.has_pool else 0):
            self.processes.start_pool_node(f"pool-{number}", ram_bytes=NODE_BYTES)
        for process in (*self.processes.workers, *self.processes.pool_nodes):
            self._put_relay_before(process)
        self.processes.publish()
        self.processes.start_proxy(f"--request-timeout-s={REQUEST_S:g}")

    def spoil(self, spoils: bool) -> None:
        self._spoils = spoils
        for relay in self._relays.values():
            relay.spoils = spoils

    def have_mishap(self, rng: Random) -> None:
        """One, and waits until it is over."""
        mishap, number = rng.choice(self._plan.mishaps), rng.randrange(2)
        self._result.mishaps[mishap] += 1
        match mishap:
            case Mishap.P_KILLED | Mishap.D_KILLED:
                role = "prefill" if mishap is Mishap.P_KILLED else "decode"
                self._replace(self.processes.worker(f"{role}-{number}"))
            case Mishap.NODE_KILLED:
                self._replace_node(self.processes.pool_nodes[number])
            case Mishap.P_STOPPED | Mishap.D_STOPPED | Mishap.NODE_STOPPED:
                stopped = {
                    Mishap.P_STOPPED: f"prefill-{number}",
                    Mishap.D_STOPPED: f"decode-{number}",
                    Mishap.NODE_STOPPED: f"pool-{number}",
                }
                self._stop_for(stopped[mishap], rng.uniform(0.2, 6.0))
            case Mishap.LINK_CUT:
                relay = self._relays[f"prefill-{number}"]
                self._loop.run(relay.cut(self._plan.time_scale * rng.uniform(0.1, 2.0)))

    def check_left_over(self) -> None:
        """Notes what is not at its baseline when nothing has been asked for long."""
        self.spoil(False)
        processes = self.processes
        try:
            processes.wait_idle(IDLE_WITHIN_S)
            wait_until(lambda: all(map(_is_idle, processes.pool_nodes)), IDLE_WITHIN_S)
        except AssertionError:
            self._result.left_over += [w.name for w in processes.workers if not w.is_idle]
            self._result.left_over += [node.name for node in processes.pool_nodes if not _is_idle(node)]
        for process in (*processes.workers, *processes.pool_nodes):
            num_in_doubt = process.metric("pdserve_staging_slots", state="quarantined")
            if num_in_doubt:
                self._result.left_over.append(f"{process.name}: {num_in_doubt:g} slots in doubt")
        for worker in processes.workers:
            self._collect_failures(worker)
        for node in processes.pool_nodes:
            self._collect_hits(node)

    def stop(self) -> None:
        for process in (*self.processes.workers, *self.processes.pool_nodes):
            process.signal(signal.SIGCONT)
        self.processes.stop()
        for relay in self._relays.values():
            self._loop.run(relay.stop())
        self._loop.stop()

    def _put_relay_before(self, process: WorkerProcess) -> None:
        """Proxies know decode workers by their own address: only nodes, asking about offers, come by the relay."""
        address = process.addresses["grpc"]
        relay = GrpcRelay(address, self._faults, self._offered_at)
        self._loop.run(relay.start())
        relay.spoils = self._spoils
        self._offered_at[address] = relay.address
        if process.role != "decode":
            process.addresses["grpc"] = relay.address
        self._relays[process.name] = relay

    def _stop_for(self, name: str, seconds: float) -> None:
        process = next(p for p in (*self.processes.workers, *self.processes.pool_nodes) if p.name == name)
        process.signal(signal.SIGSTOP)
        time.sleep(self._plan.time_scale * seconds)
        process.signal(signal.SIGCONT)

    def _replace(self, worker: WorkerProcess) -> None:
        worker.kill()
        self._result.num_deaths += 1
        self._collect_failures(worker)
        self._loop.run(self._relays.pop(worker.name).stop())
        self._put_relay_before(self.processes.replace(worker))
        self.processes.publish()

    def _replace_node(self, node: WorkerProcess) -> None:
        """Proxies hear of it only when the next one is there."""
        self._collect_hits(node)
        node.kill()
        self._result.num_deaths += 1
        self._loop.run(self._relays.pop(node.name).stop())
        started = self.processes.start_pool_node(node.name, ram_bytes=NODE_BYTES)
        self._put_relay_before(started)
        self.processes.end_pool_node(node)

    def _collect_failures(self, worker: WorkerProcess) -> None:
        """From the worker's log: it also tells what a dead one did."""
        log = (self._plan.log_dir / f"{worker.addresses['incarnation']}.log").read_text()
        for line in log.splitlines():
            found = HANDOFF_FAILED.search(line)
            if found is not None:
                self._result.failed_attempts[FailureReason(found[1])] += 1

    def _collect_hits(self, node: WorkerProcess) -> None:
        self._result.num_found += int(node.metric("pdserve_pool_hits_total"))


def _is_idle(node: WorkerProcess) -> bool:
    """No entry leased or on its way, no busy slot."""
    return not any(
        (
            node.metric("pdserve_pool_leased_objects"),
            node.metric("pdserve_pool_incomplete_objects"),
            node.metric("pdserve_staging_slots", state="busy"),
        )
    )


def faults_of(plan: RealPlan) -> Faults:
    """Workers die and stop by mishaps, and the machine's clock does not jump."""
    return Faults(plan.seed, plan.rate, 0.0, 0.1 * plan.time_scale, frozenset({Fault.CLOCK_JUMPS}))
