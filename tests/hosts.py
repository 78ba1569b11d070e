"""Several hosts on one machine: network namespaces on one switch, with links that a test can limit, cut and pull out.

The test's own process is on the same switch, so what it asks of a host goes around the faults between hosts. Everything
goes when the context ends, and what a killed run left goes when the next one begins. Needs root, ip, tc and iptables.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

PREFIX = "pdserve"
NAMESPACES = Path("/run/netns")
TOOLS = {"ip": "iproute2", "tc": "iproute2", "iptables": "iptables", "unshare": "util-linux"}
OWN_ADDRESS = 254  # the test's own, on each network
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000  # sched.h
SET_HOSTNAME = 'hostname "$0" && exec "$@"'


@dataclass(frozen=True, slots=True)
class Host:
    """Where a process can run. Without a namespace it is this machine itself."""

    name: str
    address: str
    namespace: str = ""

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The same process, in this host and under its name; it keeps the pid that it is started with."""
        if not self.namespace:
            return list(arguments)
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", SET_HOSTNAME, self.name]
        return [*enter, *arguments]

    def enter(self) -> None:
        """This process goes there, before it has threads: as `ip netns exec` does it, /sys is that host's too."""
        with (NAMESPACES / self.namespace).open() as namespace:
            _system_call("setns", namespace.fileno(), CLONE_NEWNET)
        _system_call("unshare", CLONE_NEWNS | CLONE_NEWUTS)
        socket.sethostname(self.name)
        _run("mount", "--make-rslave", "/")
        _run("umount", "--lazy", "/sys")
        _run("mount", "-t", "sysfs", self.name, "/sys")


HERE = Host("here", "127.0.0.1")


class Network:
    """Maintains the links between `hosts`. Each fault lasts as long as its context."""

    def __init__(self, hosts: Sequence[Host], own_address: str) -> None:
        self.hosts = tuple(hosts)
        self.own_address = own_address  # by which hosts reach the test's process

    @contextmanager
    def limited(self, host: Host, megabits_per_s: float) -> Iterator[None]:
        """What `host` sends, together."""
        queue = ("dev", "eth0", "root")
        limit = ("tbf", "rate", f"{megabits_per_s:g}mbit", "burst", "64kb", "latency", "100ms")
        _in(host, "tc", "qdisc", "replace", *queue, *limit)
        try:
            yield
        finally:
            _in(host, "tc", "qdisc", "del", *queue)

    @contextmanager
    def cut(self, one: Host, other: Host, port: int | None = None) -> Iterator[None]:
        """Drops every packet between the two, or those to and from `port` of `other`. Nobody is told."""
        with _dropping(one, _from(other, port, None)), _dropping(other, _from(one, None, port)):
            yield

    @contextmanager
    def unplugged(self, host: Host) -> Iterator[None]:
        """The host's link is down: whoever sends from there is told, nobody else is."""
        _in(host, "ip", "link", "set", "eth0", "down")
        try:
            yield
        finally:
            _in(host, "ip", "link", "set", "eth0", "up")


@contextmanager
def network(num_hosts: int) -> Iterator[Network]:
    """`h0`, `h1` and so on. Skips the test, with the reason, where that cannot be had."""
    reason = _missing()
    if reason is not None:
        pytest.skip(f"no hosts in network namespaces: {reason}")
    _remove_leftovers()
    with ExitStack() as undo:
        yield _build(num_hosts, undo)


def _build(num_hosts: int, undo: ExitStack) -> Network:
    run_name, subnet = f"{PREFIX}-{os.getpid()}", _free_subnet()
    switch = f"{run_name}-switch"
    _add_namespace(switch, undo)
    _run("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
    _run("ip", "-n", switch, "link", "set", "switch", "up")
    own_link = f"pd{os.getpid()}"  # 15 characters at most
    _run("ip", "-n", switch, "link", "add", "own", "type", "veth", "peer", "name", own_link, "netns", str(os.getpid()))
    _run("ip", "-n", switch, "link", "set", "own", "master", "switch", "up")
    own_address = f"{subnet}.{OWN_ADDRESS}"
    _run("ip", "address", "add", f"{own_address}/24", "dev", own_link)
    _run("ip", "link", "set", own_link, "up")
    hosts = [Host(f"h{n}", f"{subnet}.{n + 1}", f"{run_name}-h{n}") for n in range(num_hosts)]
    for host in hosts:
        _add_namespace(host.namespace, undo)
        link = ["link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", host.namespace]
        _run("ip", "-n", switch, *link)
        _run("ip", "-n", switch, "link", "set", host.name, "master", "switch", "up")
        _run("ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
        _run("ip", "-n", host.namespace, "link", "set", "lo", "up")
        _run("ip", "-n", host.namespace, "link", "set", "eth0", "up")
    return Network(hosts, own_address)


def _add_namespace(name: str, undo: ExitStack) -> None:
    undo.callback(_remove_namespace, name)
    _run("ip", "netns", "add", name)


def _remove_namespace(name: str) -> None:
    """With every process that still runs there, and every link of it."""
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
    for pid in pids.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _remove_leftovers() -> None:
    """Of runs whose process is gone."""
    for file in NAMESPACES.glob(f"{PREFIX}-*"):
        pid = file.name.split("-")[1]
        if not Path("/proc", pid).exists():
            _remove_namespace(file.name)


def _free_subnet() -> str:
    """Three numbers of four, out of what is set aside for tests of networks (RFC 2544)."""
    taken = subprocess.run(["ip", "-4", "address"], capture_output=True, text=True, check=True).stdout
    first = os.getpid() % 512
    numbers = (divmod((first + n) % 512, 256) for n in range(512))
    return next(net for net in (f"198.{18 + high}.{low}" for high, low in numbers) if f" {net}." not in taken)


@contextmanager
def _dropping(host: Host, packets: Sequence[str]) -> Iterator[None]:
    _in(host, "iptables", "-w", "-I", "INPUT", *packets, "-j", "DROP")
    try:
        yield
    finally:
        _in(host, "iptables", "-w", "-D", "INPUT", *packets, "-j", "DROP")


def _from(host: Host, source_port: int | None, port: int | None) -> list[str]:
    """What comes from there; without ports whatever it is, else of TCP."""
    given = {"--sport": source_port, "--dport": port}
    ports = [word for option, value in given.items() if value is not None for word in (option, str(value))]
    return ["-s", host.address, *(["-p", "tcp", *ports] if ports else [])]


def _missing() -> str | None:
    """Why there can be no namespaces here."""
    if os.geteuid() != 0:
        return "this needs root"
    tools = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if tools:
        return f"not installed: {', '.join(tools)}"
    probe = f"{PREFIX}-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    _remove_namespace(probe)
    return made.stderr.strip() or None


def _system_call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _in(host: Host, *command: str) -> str:
    return _run("ip", "netns", "exec", host.namespace, *command)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
