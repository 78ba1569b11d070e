"""How the commands get into a cluster of this user: its certificates inside, and the operator's key at the proxy.

The key is in the cluster's own folder, as Ray's token is: whoever can read the one can read the other.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from deploy.cluster_state import ClusterState
from deploy.errors import CommandError
from proxy.access.api_key import NewKey
from security.channel_tls import ChannelTls
from security.cluster_tls import ClusterTls
from security.pem import TlsError
from security.pinned import pinned_channel_tls, pinned_context


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """None, or nothing, where the cluster has no such lock."""

    inside: ChannelTls | None  # towards the controller and the workers
    proxy: ChannelTls | None
    proxy_context: ssl.SSLContext | None  # the same for HTTP
    metadata: tuple[tuple[str, str], ...]  # towards the proxy

    @classmethod
    def of(cls, state: ClusterState) -> ClusterAccess:
        """Raises CommandError when a file that the cluster was started with cannot be read any more."""
        certificate = None if state.tls_cert is None else Path(state.tls_cert)
        try:
            return cls(
                ClusterTls.read(None if state.tls is None else Path(state.tls)).channel,
                None if certificate is None else pinned_channel_tls(certificate),
                None if certificate is None else pinned_context(certificate),
                _metadata(state.operator_key_file),
            )
        except TlsError as error:
            raise CommandError(str(error)) from error


def write_operator_key(file: Path) -> None:
    """A new one, its owner's alone to read."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(NewKey.draw().text)


def _metadata(key_file: str | None) -> tuple[tuple[str, str], ...]:
    if key_file is None:
        return ()
    try:
        return (("authorization", f"Bearer {Path(key_file).read_text().strip()}"),)
    except OSError as error:
        raise CommandError(f"{key_file} cannot be read: {error.strerror}") from error
