"""Certificates and keys as files, checked before anything is started with them."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

OTHERS = 0o037  # all that is not the owner's, but for a group that may read, as a mounted secret's does


class TlsError(ValueError):
    """The files cannot be used; the message names the one that is wrong, and the fix."""


def read(path: Path) -> bytes:
    """Raises TlsError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"{path} cannot be read: {error.strerror}; `pdserve certs` makes certificates") from error


def check_pair(certificate: Path, key: Path) -> None:
    """That the two belong together, hold now, and that the key is its owner's alone. Raises TlsError."""
    read(certificate)
    read(key)
    mode = stat.S_IMODE(os.stat(key).st_mode)
    if mode & OTHERS:
        raise TlsError(f"{key} has the mode {mode:04o}, so others could read or change it: chmod 600 {key}")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise TlsError(f"{certificate} and {key} are no certificate and its key: {error.reason or error}") from error
