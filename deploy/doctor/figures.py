"""The figures of this machine, read from the system; what they mean is said elsewhere."""

from __future__ import annotations

import ctypes
import errno
import resource
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from cluster.pools_spec import Share
from cluster.roles import ROLE_NAMES
from cluster.spec import ClusterSpec
from deploy.plan.model_size import ModelSize
from engine.model_config import ModelConfig

TIMEX_BYTES = 512  # more than adjtimex(2)'s struct, of which nothing is read
TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
PROCESS_BYTES = 600 << 20  # of a worker: Python, torch and Ray


def available_memory(file: Path = Path("/proc/meminfo")) -> int:
    """Bytes that new processes can have."""
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024


def is_clock_synchronised() -> bool | None:
    """None where the system does not say."""
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    if state < 0:
        return None if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS) else False
    return bool(state != TIME_ERROR)


def locked_memory_limit() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def pins(package: str) -> dict[str, str]:
    """What it wants of others, as `name==version`; extras left out."""
    wanted = (text for text in metadata.requires(package) or [] if ";" not in text and "==" in text)
    return dict(text.split("==", 1) for text in wanted)


def installed(names: Iterable[str]) -> dict[str, str | None]:
    return {name: _version(name) for name in names}


def num_threads(spec: ClusterSpec) -> int:
    """Of all workers together."""
    return sum(share.num_workers * share.engine.threads for share in _shares(spec))


def wanted_memory(spec: ClusterSpec, model_dir: Path) -> int:
    """Bytes of all workers on CPUs: weights, KV cache, host memory for swapped requests, process."""
    config = ModelConfig.from_folder(model_dir)
    wanted = 0
    for share in _shares(spec):
        engine = share.engine
        if engine.device != "cpu":
            continue
        size = ModelSize.of(config, "float32" if engine.dtype == "auto" else engine.dtype)
        blocks = engine.num_blocks + engine.scheduling.num_swap_blocks
        wanted += share.num_workers * (size.weight_bytes + blocks * engine.block_size * size.kv_bytes + PROCESS_BYTES)
    return wanted


def _shares(spec: ClusterSpec) -> list[Share]:
    return [share for role in ROLE_NAMES for share in spec.pools.of(role).shares]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
