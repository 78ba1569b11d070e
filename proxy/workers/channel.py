"""The connections that the proxy opens, to workers and to the controller: all with the same options.

Never through an HTTP proxy, whatever the environment says: they stay inside the cluster.
"""

from __future__ import annotations

import grpc

from security import connection
from security.channel_tls import ChannelTls

MAX_MESSAGE_BYTES = 64 << 20
OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection, without another's back-off
    ("grpc.enable_http_proxy", 0),
]


def open_channel(address: str, tls: ChannelTls | None = None) -> grpc.aio.Channel:
    """Use as a context."""
    return connection.open_channel(address, tls, OPTIONS)
