"""The certificate that clients see, on both of the proxy's ports."""

from __future__ import annotations

from pathlib import Path

import grpc

from security.pem import check_pair, read


def server_credentials(certificate: Path | None, key: Path | None) -> grpc.ServerCredentials | None:
    """None without a certificate: then the ports are plain. Raises TlsError."""
    if certificate is None or key is None:
        return None
    check_pair(certificate, key)
    return grpc.ssl_server_credentials([(read(key), read(certificate))])
