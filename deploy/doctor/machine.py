"""What is said of a machine: each function judges figures it is given, so that every judgement can be tried."""

from __future__ import annotations

from deploy.doctor.finding import Finding, error, fine, warning

GIB = 1 << 30
FEWEST_FILES = 4096
LEAST_SHARED_MEMORY = GIB
LEAST_DISK = 4 * GIB
FULL_DISK = 0.95  # Ray stops writing above it


def processor(system: str, machine: str, num_cores: int, num_threads: int) -> Finding:
    """`num_threads`: of all workers together."""
    seen = f"{system} on {machine}, {num_cores} cores; the workers compute with {num_threads} threads"
    if (system, machine) != ("Linux", "x86_64"):
        return error("processor", seen, "run it on Linux on x86-64: torch and NIXL are pinned for it")
    if num_threads > num_cores:
        return warning("processor", seen, "lower cluster.engine.threads or the pools' replicas: workers share cores")
    return fine("processor", seen)


def memory(available_bytes: int, wanted_bytes: int) -> Finding:
    seen = f"{available_bytes / GIB:.1f} GiB free; the workers on CPUs want {wanted_bytes / GIB:.1f}"
    if wanted_bytes > available_bytes:
        return error("memory", seen, "lower cluster.engine.num_blocks or the pools' replicas, or end other processes")
    return fine("memory", seen)


def shared_memory(free_bytes: int) -> Finding:
    seen = f"{free_bytes / GIB:.1f} GiB free in /dev/shm"
    if free_bytes < LEAST_SHARED_MEMORY:
        fix = "enlarge it: mount -o remount,size=2G /dev/shm, or --shm-size 2g for a container; UCX and Ray use it"
        return warning("shared memory", seen, fix)
    return fine("shared memory", seen)


def disk(folder: str, total_bytes: int, free_bytes: int) -> Finding:
    seen = f"{free_bytes / GIB:.1f} GiB free where {folder} is, {1 - free_bytes / total_bytes:.0%} full"
    if free_bytes < LEAST_DISK or 1 - free_bytes / total_bytes > FULL_DISK:
        fix = "free some, or set TMPDIR (logs, Ray) or XDG_CACHE_HOME (models) to a folder with room"
        return warning(f"disk {folder}", seen, fix)
    return fine(f"disk {folder}", seen)


def open_files(limit: int) -> Finding:
    seen = f"{limit} a process"
    if limit < FEWEST_FILES:
        return warning("open files", seen, f"ulimit -n {4 * FEWEST_FILES} before `pdserve up`: each stream takes one")
    return fine("open files", seen)


def clock(is_synchronised: bool | None, num_nodes: int) -> Finding:
    """None: the system does not say."""
    if is_synchronised is None:
        return fine("clock", "the system does not say whether it is synchronised")
    if is_synchronised:
        return fine("clock", "synchronised")
    if num_nodes > 1:
        fix = (
            "start chrony or systemd-timesyncd: logs and traces of machines do not line up, certificates may be refused"
        )
        return warning("clock", "not synchronised", fix)
    return fine("clock", "not synchronised, which one machine does not need")


def compiler(found: str | None) -> Finding:
    if found is None:
        return warning("C compiler", "none on PATH", "install gcc or clang: without one attention on CPUs is slower")
    return fine("C compiler", found)


def locked_memory(limit_bytes: int | None, has_rdma: bool) -> Finding:
    """None: no limit. It matters to devices that read memory by themselves."""
    seen = "no limit" if limit_bytes is None else f"{limit_bytes / GIB:.2f} GiB a process"
    if has_rdma and limit_bytes is not None:
        fix = "ulimit -l unlimited (limits.conf: memlock), or the network card cannot register the KV cache"
        return warning("locked memory", seen, fix)
    return fine("locked memory", seen)
