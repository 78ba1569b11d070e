"""The connections that the commands open, to controller and proxy: all with the same options.

Never through an HTTP proxy, whatever the environment says: they stay inside the cluster.
"""

from __future__ import annotations

import grpc

from security.channel_tls import ChannelTls
from security.connection import open_blocking_channel

OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection, without another's back-off
    ("grpc.enable_http_proxy", 0),
]


def open_channel(address: str, tls: ChannelTls | None = None) -> grpc.Channel:
    """Use as a context, or close it."""
    return open_blocking_channel(address, tls, OPTIONS)
