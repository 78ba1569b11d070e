"""The same between real processes: the real model, KV over NIXL, spoiled gRPC, and workers that are stopped or killed.

Each text is compared with the one that the same prompt got before anything was spoiled.
"""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import grpc
from tokenizers import Tokenizer

from kv_transfer.messages import FailureReason
from rpc import inference_pb2, inference_pb2_grpc
from tests.faults.fault import Fault, Faults
from tests.faults.grpc_relay import GrpcRelay
from tests.faults.round import Result
from tests.integration.processes import Processes, WorkerProcess

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
HANDOFF_FAILED = re.compile(r"request \S+ attempt \d+: (\w+): ")
NUM_TOKENS = 6
REQUEST_S = 60.0  # its deadline, which the proxy keeps
GRACE_S = 10.0  # an answer that comes later than this after it is a hang
DEADLINES = {
    "handshake_timeout_s": 3.0,
    "open_timeout_s": 5.0,
    "lease_s": 8.0,
    "renew_every_s": 0.5,
    "transfer_timeout_s": 2.0,
    "verdict_timeout_s": 3.0,
    "silent_peer_s": 4.0,
}
STAGING = {"staging_slots": 6, "staging_slot_bytes": 4 << 20, "max_quarantined_slots": 5}


class Mishap(StrEnum):
    P_KILLED = "P killed"
    D_KILLED = "D killed"
    P_STOPPED = "P stopped for a while"
    D_STOPPED = "D stopped for a while"
    LINK_CUT = "all links to P cut for a while"


MISHAPS = (Mishap.P_KILLED, Mishap.D_KILLED, *[Mishap.P_STOPPED, Mishap.D_STOPPED, Mishap.LINK_CUT] * 2)


@dataclass(frozen=True, slots=True)
class RealPlan:
    seed: str
    num_handoffs: int
    model_dir: Path
    log_dir: Path
    engine: dict[str, Any]
    num_at_once: int = 6
    num_prompts: int = 40
    rate: float = 0.06
    time_scale: float = 1.0  # of deadlines, delays and stops
    ucx_tls: str | None = None


@dataclass(slots=True)
class RealResult(Result):
    mishaps: Counter[Mishap] = field(default_factory=Counter)


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


class RealRun:
    """Maintains two workers of each role, each P behind a relay, and a proxy."""

    def __init__(self, plan: RealPlan) -> None:
        self._plan = plan
        self._faults = Faults(plan.seed, plan.rate, 0.0, 0.1 * plan.time_scale, frozenset({Fault.CLOCK_JUMPS}))
        self._loop = LoopThread()
        self._relays: dict[str, GrpcRelay] = {}  # by worker
        self._served = threading.Event()
        self._spoils = False
        deadlines = {name: plan.time_scale * value for name, value in DEADLINES.items()}
        self._processes = Processes(
            plan.model_dir,
            plan.log_dir,
            engine=plan.engine,
            kv_transfer=STAGING | deadlines | {"ucx_tls": plan.ucx_tls},
        )
        self.result = RealResult(self._faults)

    def run(self) -> RealResult:
        started_at = time.monotonic()
        try:
            self._start()
            prompts = make_prompts(self._plan)
            undisturbed = self._ask_all(prompts, lambda _, prompt: self._ask(prompt))
            for relay in self._relays.values():
                relay.spoils = True
            self._spoils = True
            chosen = Random(f"{self._plan.seed} order").choices(range(len(prompts)), k=self._plan.num_handoffs)
            with ThreadPoolExecutor(1) as pool:
                mishaps = pool.submit(self._have_mishaps)
                texts = self._ask_all([prompts[i] for i in chosen], self._serve)
                self._served.set()
                mishaps.result()
            for n, (i, text) in enumerate(zip(chosen, texts, strict=True)):
                if text is not None and text != undisturbed[i]:
                    self.result.wrong_texts.append(f"request {n}, prompt {i}: {text}, alone {undisturbed[i]}")
            self._check_left_over()
        finally:
            self._stop()
        self.result.seconds = time.monotonic() - started_at
        return self.result

    def _ask_all(
        self, prompts: list[list[int]], ask: Callable[[int, list[int]], list[int] | None]
    ) -> list[list[int] | None]:
        with ThreadPoolExecutor(self._plan.num_at_once) as pool:
            return list(pool.map(ask, range(len(prompts)), prompts))

    def _start(self) -> None:
        self._processes.start_workers(prefill=2, decode=2)
        for worker in self._processes.workers:
            self._put_relay_before(worker)
        self._processes.publish()
        self._processes.start_proxy(f"--request-timeout-s={REQUEST_S:g}")

    def _put_relay_before(self, worker: WorkerProcess) -> None:
        if worker.role == "prefill":
            relay = GrpcRelay(worker.addresses["grpc"], self._faults)
            self._loop.run(relay.start())
            relay.spoils = self._spoils
            worker.addresses["grpc"] = relay.address
            self._relays[worker.name] = relay

    def _serve(self, n: int, prompt: list[int]) -> list[int] | None:
        """Its tokens, or None for an error; a hang is noted."""
        started_at = time.monotonic()
        try:
            tokens = self._ask(prompt)
        except grpc.RpcError as error:
            if time.monotonic() - started_at > REQUEST_S + GRACE_S / 2:
                self.result.hangs.append(f"request {n}")
            self.result.outcomes[f"failed: {error.code().name.lower()}"] += 1
            return None
        return tokens

    def _ask(self, prompt: list[int]) -> list[int]:
        sampling = inference_pb2.Sampling(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
        request = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=prompt), sampling=sampling)
        tokens: list[int] = []
        with grpc.insecure_channel(self._processes.grpc) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            for response in stub.Generate(request, timeout=REQUEST_S + GRACE_S):
                tokens += response.token.ids
                if response.WhichOneof("event") == "finished" and self._spoils:
                    path = "valid" if response.finished.path == "p2p" else "recomputed"
                    self.result.outcomes[path] += 1
        return tokens

    def _have_mishaps(self) -> None:
        """One after the other, for as long as requests are served."""
        rng = Random(f"{self._plan.seed} mishaps")
        while not self._served.wait(self._plan.time_scale * rng.uniform(0.5, 5.0)):
            self._have_mishap(rng)

    def _have_mishap(self, rng: Random) -> None:
        mishap, number = rng.choice(MISHAPS), rng.randrange(2)
        prefill, decode = self._processes.worker(f"prefill-{number}"), self._processes.worker(f"decode-{number}")
        self.result.mishaps[mishap] += 1
        match mishap:
            case Mishap.P_KILLED:
                self._replace(prefill)
            case Mishap.D_KILLED:
                self._replace(decode)
            case Mishap.P_STOPPED | Mishap.D_STOPPED:
                worker = prefill if mishap is Mishap.P_STOPPED else decode
                worker.signal(signal.SIGSTOP)
                time.sleep(self._plan.time_scale * rng.uniform(0.2, 6.0))
                worker.signal(signal.SIGCONT)
            case Mishap.LINK_CUT:
                self._loop.run(self._relays[prefill.name].cut(self._plan.time_scale * rng.uniform(0.1, 2.0)))

    def _replace(self, worker: WorkerProcess) -> None:
        worker.kill()
        self.result.num_deaths += 1
        self._collect_failures(worker)
        if worker.name in self._relays:
            self._loop.run(self._relays.pop(worker.name).stop())
        self._put_relay_before(self._processes.replace(worker))
        self._processes.publish()

    def _collect_failures(self, worker: WorkerProcess) -> None:
        """From the worker's log: it also tells what a dead one did."""
        log = (self._plan.log_dir / f"{worker.addresses['incarnation']}.log").read_text()
        for line in log.splitlines():
            found = HANDOFF_FAILED.search(line)
            if found is not None:
                self.result.failed_attempts[FailureReason(found[1])] += 1

    def _check_left_over(self) -> None:
        for relay in self._relays.values():
            relay.spoils = False
        try:
            self._processes.wait_idle()
        except AssertionError:
            self.result.left_over += [w.name for w in self._processes.workers if not w.is_idle]
        for worker in self._processes.workers:
            num_in_doubt = worker.metric("pdserve_staging_slots", state="quarantined")
            if num_in_doubt:
                self.result.left_over.append(f"{worker.name}: {num_in_doubt:g} slots in doubt")
            self._collect_failures(worker)

    def _stop(self) -> None:
        for worker in self._processes.workers:
            worker.signal(signal.SIGCONT)
        self._processes.stop()
        for relay in self._relays.values():
            self._loop.run(relay.stop())
        self._loop.stop()


def make_prompts(plan: RealPlan) -> list[list[int]]:
    """Of real text, each from another place."""
    tokenizer = Tokenizer.from_file(str(plan.model_dir / "tokenizer.json"))
    ids = tokenizer.encode((ROOT / "LICENSE").read_text(), add_special_tokens=False).ids
    rng = Random(f"{plan.seed} prompts")
    starts = rng.sample(range(len(ids) - 200), plan.num_prompts)
    return [ids[start : start + rng.choice([1, 15, 16, 17, 40, 64, 100, 150])] for start in starts]
