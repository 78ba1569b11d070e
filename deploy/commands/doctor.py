"""`pdserve doctor`."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deploy.cluster_state import default_store
from deploy.config import DEFAULT_FILE, DeployConfig, load, parse_setting
from deploy.doctor import machine, settings, software
from deploy.doctor.finding import Finding, Level, warning
from deploy.errors import CommandError
from deploy.model_store import default_cache_dir

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}
NIXL_CHECK = (sys.executable, "-m", "kv_transfer.nixl_check")
NIXL_OVER = ({"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}, {"UCX_TLS": "sm,tcp", "UCX_NET_DEVICES": "lo"})


def run(config_file: Path | None, given: list[str], as_json: bool) -> None:
    """Raises CommandError when a cluster would not run here."""
    config = load(config_file or DEFAULT_FILE, dict(parse_setting(text) for text in given))
    findings = list(_findings(config))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings)
    errors = [finding.what for finding in findings if finding.level is Level.ERROR]
    if errors:
        raise CommandError(f"a cluster does not run here yet: {', '.join(errors)}")


def _findings(config: DeployConfig) -> Iterator[Finding]:
    """What is tried in processes of its own runs meanwhile."""
    with ThreadPoolExecutor() as pool:
        torch = pool.submit(software.try_python, software.TORCH)
        ray = pool.submit(software.try_python, software.RAY)
        tcp, one_machine = (pool.submit(software.try_command, NIXL_CHECK, environment=over) for over in NIXL_OVER)
        yield software.python(sys.version_info[:2])
        shares = [share for _, pool in config.cluster.pools for share in pool.shares if share.num_workers]
        wants_gpu = any(share.engine.device != "cpu" for share in shares)
        yield software.torch(torch.result(), wants_gpu, Path("/proc/driver/nvidia").exists())
        yield software.ray(ray.result(), os.environ.get("RAY_ADDRESS"))
        yield from software.nixl(tcp.result(), one_machine.result())
        if torch.result().said is not None:  # what follows loads it
            yield from _of_machine(config)
    yield from settings.ports(config, default_store(os.environ))
    yield settings.security(config)


def _of_machine(config: DeployConfig) -> Iterator[Finding]:
    from deploy.doctor import figures

    pins = figures.pins("pdserve")
    yield software.packages(pins, figures.installed(pins))
    threads = figures.num_threads(config.cluster)
    yield machine.processor(platform.system(), platform.machine(), len(os.sched_getaffinity(0)), threads)
    cache = default_cache_dir(os.environ)
    model = next((f for f in (Path(config.cluster.model), cache / config.cluster.model) if f.is_dir()), None)
    if model is None:
        yield warning(
            "model", f"{config.cluster.model} is not here yet", "`pdserve up` fetches it: a network is needed"
        )
    else:
        yield machine.memory(figures.available_memory(), figures.wanted_memory(config.cluster, model))
    yield machine.shared_memory(shutil.disk_usage("/dev/shm").free)
    for folder in dict.fromkeys((tempfile.gettempdir(), str(_existing(cache)))):
        usage = shutil.disk_usage(folder)
        yield machine.disk(folder, usage.total, usage.free)
    yield machine.open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield machine.locked_memory(figures.locked_memory_limit(), Path("/sys/class/infiniband").exists())
    yield machine.clock(figures.is_clock_synchronised(), config.cluster.num_nodes)
    yield machine.compiler(shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"))


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.exists())


def _show(findings: list[Finding]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        said = Text(finding.seen)
        if finding.fix:
            said.append(f"\n→ {finding.fix}", "bold")
        table.add_row(Text(finding.level.value, STYLES[finding.level]), finding.what, said)
    Console(highlight=False).print(table)
