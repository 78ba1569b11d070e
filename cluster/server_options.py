"""How the gRPC server of a worker or pool node treats its connections."""

from __future__ import annotations

from security.connection import HANDSHAKE_OPTION

SERVER_OPTIONS = [
    ("grpc.keepalive_time_ms", 5_000),  # a peer that went away without a word is noticed
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),  # peers ask an idle link whether it lives
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    HANDSHAKE_OPTION,
]
