"""Which transports a worker has: those its configuration names, or what its machine offers, the preferred one first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec

import torch

from engine.kv_cache import KVCache
from kv_transfer.config import TransferConfig, TransportName
from kv_transfer.gloo import GlooCommunicators
from kv_transfer.nixl import NixlTransport
from kv_transfer.staging import StagingRing
from kv_transfer.transport import Transport
from kv_transfer.two_sided import TwoSidedTransport


def transport_names(config: TransferConfig, device: torch.device, has_cupy: bool) -> tuple[TransportName, ...]:
    """Raises ValueError when a named one cannot move this device's memory."""
    on_cuda = device.type == "cuda"
    if config.transports == "auto":
        return ("nccl", "nixl") if on_cuda and has_cupy else ("nixl",)
    if "gloo" in config.transports and on_cuda:
        raise ValueError("kv_transfer.transports has gloo, which moves host memory only: take nccl on a GPU")
    if "nccl" in config.transports and not on_cuda:
        raise ValueError(f"kv_transfer.transports has nccl, which needs engine.device cuda, not {device}")
    return config.transports


def build_transports(
    incarnation: str,
    cache: KVCache,
    ring: StagingRing,
    config: TransferConfig,
    host: str,
    on_failed: Callable[[str], None],
) -> Mapping[str, Transport]:
    """By name, in the order of preference. `host`: the worker's own address."""
    device = cache.tensor.device

    def build(name: TransportName) -> Transport:
        match name:
            case "nixl":
                return NixlTransport(incarnation, cache, ring, config.ucx_tls, config.ucx_net_devices, on_failed)
            case "gloo":
                return TwoSidedTransport(incarnation, cache, GlooCommunicators(host), config)
            case "nccl":
                from kv_transfer.nccl import NcclCommunicators  # cupy is an extra

                return TwoSidedTransport(incarnation, cache, NcclCommunicators(device.index or 0), config)

    names = transport_names(config, device, has_cupy=find_spec("cupy") is not None)
    return {name: build(name) for name in names}
