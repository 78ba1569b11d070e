"""Host and port as one string, IPv6 brackets included."""

from __future__ import annotations


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
