"""`pdserve drill starts`: a cluster of the fake model is started again and again, while some of its ports are taken."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Timer
from time import monotonic

from rich.console import Console

from bench.fake_model import write_fake_model
from bench.starts import SETTINGS, Ended, PortPlan, Since, fault_of, named, plan_start
from bench.table import markdown_table
from deploy.cluster_report import cluster_report
from deploy.cluster_state import StateStore, default_store
from deploy.config import DEFAULT_FILE
from deploy.errors import CommandError
from deploy.inference_client import Generation, GenerationFailedError, text_request
from deploy.ports import free_ports
from deploy.tear_down import tear_down
from engine.fake_runner import FakeRunner

NAME = "starts"
HOST = "127.0.0.1"
POOLS = {"prefill": 2, "decode": 2}
CHECKED = "starting Ray"  # what it says when it has looked at its ports
UP_TIMEOUT_S = 300.0
PROMPT, NUM_TOKENS, ANSWER_S = "hello there", 8, 60.0


def run(number: int, seed: int, output: Path | None) -> None:
    """Raises CommandError when a start did neither serve nor say why not."""
    console, store = Console(highlight=False), default_store(os.environ)
    if store.find(NAME) is not None:
        raise CommandError(f"there is a cluster {NAME!r} already: `pdserve down --name {NAME}` ends it")
    rows, faults = [], []
    with TemporaryDirectory(prefix="pdserve-drill-") as folder:
        model = write_fake_model(Path(folder) / "fake")
        for index in range(1, number + 1):
            plan = plan_start(seed, index)
            ports = dict(zip(SETTINGS, free_ports([HOST] * len(SETTINGS)), strict=True))
            taken = {setting: ports[setting] for setting in plan.taken}
            ended = _start(plan, ports, model, store)
            fault = fault_of(ended, taken, sum(POOLS.values()), _right_answer())
            if fault is not None:
                faults.append(f"start {index}, taken: {plan}: {fault}")
            rows.append((f"{index}, taken: {plan}", _outcome(ended, taken, fault), f"{ended.seconds:.0f}"))
            console.print(": ".join(rows[-1][:2]), markup=False, soft_wrap=True)
    if output is not None:
        table = markdown_table(("start", "what came of it", "after s"), rows)
        lines = "".join(f"- {fault}\n" for fault in faults) or "No fault.\n"
        with output.open("a") as file:
            file.write(f"\n`pdserve drill starts --starts {number} --seed {seed}`\n\n{table}\n{lines}")
    if faults:
        raise CommandError("\n".join(faults))


def _outcome(ended: Ended, taken: Mapping[str, int], fault: str | None) -> str:
    if fault is not None:
        return "a fault"
    return f"refused: {named(ended.text, taken)} and its port are named" if ended.text else "serves"


def _start(plan: PortPlan, ports: Mapping[str, int], model: Path, store: StateStore) -> Ended:
    """The cluster has ended when this returns."""
    settings: dict[str, object] = {name: 0 if name in plan.chosen else port for name, port in ports.items()}
    settings |= {"cluster.model": str(model), "cluster.engine.num_blocks": 128, "cluster.restart.first_delay_s": 0.1}
    begun_at = monotonic()
    with ExitStack() as held:
        _take(held, plan, Since.BEFORE, ports)
        with _up(settings) as process:
            text = ""
            for line in process.stdout or ():
                text += line
                if CHECKED in line:
                    _take(held, plan, Since.MEANWHILE, ports)
        seconds = monotonic() - begun_at
        state = store.find(NAME)
        try:
            if process.returncode != 0 or state is None:
                said = text or f"it ended with {process.returncode} and said nothing"
                return Ended(seconds, said, is_left=state is not None)
            states = [worker["state"] for worker in cluster_report(state)["workers"]]
            return Ended(seconds, "", states.count("ready"), _answer(state.grpc_address))
        finally:
            if state is not None:
                tear_down(state, store, Event())


def _answer(address: str) -> str:
    """Or why there is none."""
    request = text_request(PROMPT, max_tokens=NUM_TOKENS, temperature=0.0)
    try:
        return "".join(Generation(address, request, ANSWER_S))
    except GenerationFailedError as error:
        return str(error)


def _take(held: ExitStack, plan: PortPlan, since: Since, ports: Mapping[str, int]) -> None:
    for setting, begin in plan.taken.items():
        if begin is since:
            held.enter_context(socket.create_server((HOST, ports[setting])))


@contextmanager
def _up(settings: Mapping[str, object]) -> Iterator[subprocess.Popen[str]]:
    """`pdserve up`, which has ended after this; killed when it takes too long."""
    command = [sys.executable, "-m", "deploy.cli", "up", "--config", str(DEFAULT_FILE), "--name", NAME, "--detach"]
    command += [f"--{role}={count}" for role, count in POOLS.items()]
    command += [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        limit = Timer(UP_TIMEOUT_S, process.kill)
        limit.start()
        try:
            yield process
        finally:
            process.wait()
            limit.cancel()


def _right_answer() -> str:
    return bytes(FakeRunner.expected(PROMPT.encode(), NUM_TOKENS)).decode()
