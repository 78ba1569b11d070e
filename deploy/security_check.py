"""What the configuration says of keys and certificates, tried before anything is started with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deploy.config import DeployConfig
from deploy.errors import CommandError
from proxy.access.key_file import KeyFile
from security.cluster_tls import ClusterTls
from security.server_certificate import server_credentials


class SecurityError(CommandError):
    """A file cannot be used; the message names the setting, the file and the fix."""


def check_security(config: DeployConfig) -> None:
    """Raises SecurityError."""
    with _named("cluster.tls"):
        ClusterTls.read(config.cluster.tls)
    with _named("proxy.tls_cert and tls_key"):
        server_credentials(config.proxy.tls_cert, config.proxy.tls_key)
    if config.proxy.keys_file is not None:
        with _named("proxy.keys_file"):
            KeyFile.read(config.proxy.keys_file)


@contextmanager
def _named(setting: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise SecurityError(f"{setting}: {error}") from error
