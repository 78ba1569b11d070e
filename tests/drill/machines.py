"""`pdserve` on several hosts of one network: what a test starts there, and what it sees."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from deploy.inference_client import Generation, GenerationFailedError, text_request
from tests.hosts import Host, Network

PDSERVE = str(Path(sys.executable).with_name("pdserve"))
JOIN = re.compile(r"pdserve join (\S+) --token-file FILE, a copy of (\S+)")
PORTS = {"controller": 8002, "grpc": 8001, "http": 8000}  # of the host's own


class Machines:
    """Runs processes on the hosts, the first being the head, `pdserve` with state of its own; ends what it started."""

    def __init__(self, net: Network, folder: Path, undo: ExitStack) -> None:
        self.head, *self.others = net.hosts
        self._environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "200"}
        self._undo = undo

    def start(self, host: Host, *arguments: str) -> subprocess.Popen[str]:
        """`pdserve`, with these."""
        return self.run(host, [PDSERVE, *arguments])

    def serve(self, host: Host, command: Sequence[str], log: Path) -> None:
        """A process whose words nobody waits for: they go to a file, since a pipe that is full would stop it."""
        with log.open("w") as file:
            process = subprocess.Popen(
                host.command(command), env=self._environment, stdout=file, stderr=file, text=True
            )
        self._undo.callback(end, process)

    def run(self, host: Host, command: Sequence[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            host.command(command),
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._undo.callback(end, process)
        return process

    def workers(self) -> list[dict[str, Any]]:
        command = self.head.command([PDSERVE, "status", "--json"])
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        workers: list[dict[str, Any]] = json.loads(done.stdout)["workers"]
        return workers

    def places(self) -> dict[str, tuple[str, str]]:
        """Of each worker that is ready: its node, and the host part of its address."""
        ready = [worker for worker in self.workers() if worker["state"] == "ready"]
        return {worker["name"]: (worker["node"], worker["address"].rpartition(":")[0]) for worker in ready}

    def generate(self, prompt: str, proxy: Host | None = None) -> tuple[str, str]:
        """The text, and the path its KV took. The proxy is on the head, unless it is said where."""
        request = text_request(prompt, max_tokens=8, temperature=0.0)
        generation = Generation(f"{(proxy or self.head).address}:{PORTS['grpc']}", request, 120)
        text = "".join(generation)
        assert generation.finished is not None
        return text, generation.finished.path

    def answers(self, prompt: str, proxy: Host) -> str | None:
        """The path of an answer's KV; None while there is none."""
        try:
            return self.generate(prompt, proxy)[1]
        except GenerationFailedError:
            return None


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def line_with(process: subprocess.Popen[str], pattern: re.Pattern[str]) -> re.Match[str]:
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if found := pattern.search(line):
            return found
    raise AssertionError("it ended without saying so:\n" + "".join(said))
