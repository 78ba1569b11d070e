"""What is said of the software: Python, the pinned packages, and what a process of its own found when it tried them.

Trying happens outside: a library that does not fit the machine may end the process that loads it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.doctor.finding import Finding, error, fine, warning

INSTALL = "./deploy/install.sh installs what is pinned; on a busy machine, ask again first"
TRY_TIMEOUT_S = 120.0
TORCH = """
import json, torch
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus}))
"""
RAY = "import json, ray; print(json.dumps({'version': ray.__version__}))"


@dataclass(frozen=True, slots=True)
class Tried:
    """What a command printed as JSON, or why it did not."""

    said: Mapping[str, Any] | None
    failure: str = ""


def try_command(
    command: Sequence[str], timeout_s: float = TRY_TIMEOUT_S, environment: Mapping[str, str] | None = None
) -> Tried:
    """`environment`: laid over this process's."""
    env = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=env)
    except subprocess.TimeoutExpired:
        return Tried(None, f"no answer after {timeout_s:g} s")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return Tried(None, f"status {done.returncode}: {last}")
    try:
        return Tried(json.loads(done.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        return Tried(None, f"an answer that cannot be read: {done.stdout[-200:]!r}")


def try_python(code: str) -> Tried:
    return try_command([sys.executable, "-c", code])


def python(version: tuple[int, int]) -> Finding:
    seen = ".".join(str(part) for part in version)
    if version != (3, 11):
        return error("Python", seen, "make the virtual environment with Python 3.11: ./deploy/install.sh does")
    return fine("Python", seen)


def packages(pins: Mapping[str, str], installed: Mapping[str, str | None]) -> Finding:
    """Versions by name: those of this project, and those found, None for one that is missing."""
    wrong = []
    for name, version in pins.items():
        found = installed.get(name)
        if found is None:
            wrong.append(f"{name} is missing")
        elif found.partition("+")[0] != version:  # torch adds its build, as in 2.13.0+cpu
            wrong.append(f"{name} is {found}, not {version}")
    if wrong:
        return error("packages", "; ".join(wrong), INSTALL)
    return fine("packages", f"{len(pins)} as pinned")


def torch(tried: Tried, wants_gpu: bool, has_driver: bool) -> Finding:
    """`has_driver`: the machine has NVIDIA's."""
    if tried.said is None:
        return error("torch", tried.failure, INSTALL)
    gpus = ", ".join(tried.said["gpus"]) or "no GPU"
    seen = f"{tried.said['version']}, {gpus}"
    if wants_gpu and not tried.said["gpus"]:
        return error(
            "torch", seen, "set cluster.engine.device=cpu, or install a CUDA build of torch and NVIDIA's driver"
        )
    if has_driver and not tried.said["gpus"]:
        return warning("torch", seen, "there is an NVIDIA driver: a CUDA build of torch would use its GPUs")
    return fine("torch", seen)


def ray(tried: Tried, address: str | None) -> Finding:
    """`address`: RAY_ADDRESS of the environment."""
    if tried.said is None:
        return error("Ray", tried.failure, INSTALL)
    if address:
        return warning("Ray", f"RAY_ADDRESS is {address}", "unset RAY_ADDRESS: a cluster has a Ray of its own")
    return fine("Ray", str(tried.said["version"]))


def nixl(tcp: Tried, one_machine: Tried) -> list[Finding]:
    """Reads between two agents, over TCP alone and as UCX likes it on one machine, where it needs TCP to begin with."""
    fix = "set cluster.kv_transfer.transports=[gloo]"
    findings = []
    for what, tried in (("tcp", tcp), ("one machine", one_machine)):
        if tried.said is not None:
            findings.append(fine(f"NIXL, {what}", f"{tried.said['blocks']} blocks read, as they were written"))
        elif tcp.said is None:
            findings.append(error(f"NIXL, {what}", tried.failure, f"{INSTALL}; or {fix}"))
        else:
            findings.append(
                warning(f"NIXL, {what}", tried.failure, "set cluster.kv_transfer.ucx_tls=tcp, or see to /dev/shm")
            )
    return findings
