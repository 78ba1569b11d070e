"""The one way to open a gRPC channel and the one way to listen: with TLS where there is any, plain where there is none.

Nothing else in this repository makes a channel or opens a port; a test holds it to that.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from security.channel_tls import ChannelTls

Options = Sequence[tuple[str, int | str]]
HANDSHAKE_OPTION = ("grpc.server_handshake_timeout_ms", 10_000)  # for whoever connects and then says nothing


def open_channel(address: str, tls: ChannelTls | None, options: Options = ()) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.credentials, options=_named(tls, options))


def open_blocking_channel(address: str, tls: ChannelTls | None, options: Options = ()) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, tls.credentials, options=_named(tls, options))


def listen(server: grpc.aio.Server, address: str, tls: grpc.ServerCredentials | None) -> int:
    """The port that was taken. Raises OSError."""
    try:
        port = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
    if port == 0:
        raise OSError(f"cannot listen on {address}")
    return port


def _named(tls: ChannelTls, options: Options) -> Options:
    return [*options, ("grpc.ssl_target_name_override", tls.server_name)]
