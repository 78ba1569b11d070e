"""Ports: free ones found, taken ones named together with who has them.

A free port may be taken by somebody else before it is used; whoever asked must then fail by name.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

LOWEST = 20000  # Ray's workers have those below
GIVEN_OUT = Path(
    "/proc/sys/net/ipv4/ip_local_port_range"
)  # to whoever names none: Ray's processes, and each connection
MOST_TRIES = 100
LISTENING = "0A"  # proc(5), net/tcp: TCP_LISTEN


def free_ports(hosts: Sequence[str]) -> list[int]:
    """One for each host, all different, that nobody uses now, and that the system gives nobody meanwhile.

    Raises OSError for a host that is not this machine's.
    """
    sockets: list[socket.socket] = []
    try:
        for host in hosts:
            sockets.append(_bound_below(_lowest_given_out(), host))
        return [int(taken.getsockname()[1]) for taken in sockets]
    finally:
        for taken in sockets:
            taken.close()


def is_free(host: str, port: int) -> bool:
    """Raises OSError when `host` is no address of this machine."""
    try:
        _bound(host, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


def listener(port: int) -> int | None:
    """The pid of a process that listens on this port; None when there is none, or it is not ours to see."""
    inodes = {inode for table in ("tcp", "tcp6") for inode in _listening(Path("/proc/net") / table, port)}
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.removeprefix("socket:[").removesuffix("]") in inodes:
            return int(descriptor.parts[2])
    return None


def _listening(table: Path, port: int) -> list[str]:
    """The inodes of sockets that listen on `port`."""
    if not table.exists():  # no IPv6
        return []
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    return [row[9] for row in rows if row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port]


def _lowest_given_out() -> int:
    return int(GIVEN_OUT.read_text().split()[0])


def _bound_below(end: int, host: str) -> socket.socket:
    """To any port at all when there is none from LOWEST to `end`."""
    ports = range(LOWEST, end)
    for port in SystemRandom().sample(ports, min(MOST_TRIES, len(ports))):
        try:
            return _bound(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return _bound(host, 0)


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()
    except OSError:
        bound.close()
        raise
    return bound
