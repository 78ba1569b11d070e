"""Mutual TLS between the processes of one cluster: whoever has a certificate of the cluster's authority is one of them.

The certificate has one name for all of them, so that no machine's name need be known when it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from security.channel_tls import ChannelTls
from security.pem import check_pair, read

AUTHORITY = "ca"
INTERNAL = "internal"
INTERNAL_NAME = "pdserve.internal"


@dataclass(frozen=True, slots=True)
class ClusterTls:
    """Both ends of every connection inside a cluster; None where all is plain."""

    server: grpc.ServerCredentials | None
    channel: ChannelTls | None

    @classmethod
    def read(cls, folder: Path | None) -> ClusterTls:
        """Of a folder that `pdserve certs` made, its authority's key left out. Raises TlsError."""
        if folder is None:
            return cls(None, None)
        authority = read(folder / f"{AUTHORITY}.crt")
        certificate, key = folder / f"{INTERNAL}.crt", folder / f"{INTERNAL}.key"
        check_pair(certificate, key)
        pair = (read(key), read(certificate))
        return cls(
            grpc.ssl_server_credentials([pair], authority, require_client_auth=True),
            ChannelTls(grpc.ssl_channel_credentials(authority, *pair), INTERNAL_NAME),
        )
