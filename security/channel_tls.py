"""What one end of a connection expects of the other's certificate."""

from __future__ import annotations

from dataclasses import dataclass

import grpc


@dataclass(frozen=True, slots=True)
class ChannelTls:
    """`server_name`: what the server's certificate is made out to, whatever address it is reached at."""

    credentials: grpc.ChannelCredentials
    server_name: str
