"""The transports that routes are over, both ends in this process, and how each one's bytes are held up."""

from __future__ import annotations

from kv_transfer.config import TransferConfig
from kv_transfer.gloo import GlooCommunicators
from kv_transfer.local import LocalNetwork, LocalTransport
from kv_transfer.nixl import NixlTransport
from kv_transfer.transport import Transport
from kv_transfer.two_sided import TwoSidedTransport
from tests.contract.route import Medium
from tests.pipe_communicator import PipeCommunicators, PipeNetwork


class StoppableNixl(NixlTransport):
    """Takes no part while it is stopped, as if its process were: over TCP nothing can then be read from it."""

    def __init__(self, *arguments: object, **fields: object) -> None:
        self._wanted = False
        self._is_stopped = False
        super().__init__(*arguments, **fields)  # type: ignore[arg-type]

    def keep_awake(self, awake: bool) -> None:
        self._wanted = awake
        super().keep_awake(awake and not self._is_stopped)

    def stop(self, is_stopped: bool) -> None:
        self._is_stopped = is_stopped
        self.keep_awake(self._wanted)


def local(config: TransferConfig) -> Medium:
    network = LocalNetwork()
    return Medium(
        lambda incarnation, cache, ring: LocalTransport(incarnation, cache, network),
        stop=lambda source, taker: _local(taker).stall(),
        go_on=lambda source, taker: _local(taker).resume(),
    )


def pipes(config: TransferConfig) -> Medium:
    network = PipeNetwork()
    kind = PipeCommunicators(network)
    return Medium(
        lambda incarnation, cache, ring: TwoSidedTransport(incarnation, cache, kind, config),
        stop=lambda source, taker: network.flows.clear(),
        go_on=lambda source, taker: network.flows.set(),
    )


def gloo(config: TransferConfig) -> Medium:
    """A source that answers no call sends nothing."""
    return Medium(
        lambda incarnation, cache, ring: TwoSidedTransport(incarnation, cache, GlooCommunicators("127.0.0.1"), config)
    )


def nixl(config: TransferConfig) -> Medium:
    return Medium(
        lambda incarnation, cache, ring: StoppableNixl(incarnation, cache, ring, ucx_tls="tcp"),
        stop=lambda source, taker: _nixl(source).stop(True),
        go_on=lambda source, taker: _nixl(source).stop(False),
    )


def _local(transport: Transport) -> LocalTransport:
    assert isinstance(transport, LocalTransport)
    return transport


def _nixl(transport: Transport) -> StoppableNixl:
    assert isinstance(transport, StoppableNixl)
    return transport
