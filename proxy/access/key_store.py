"""The keys that hold now: the file's, read again within a second after it changed.

A file that breaks while the proxy runs is logged, once, and the keys that held before it go on holding.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from proxy.access.api_key import ApiKey, id_of, is_key, operator_key
from proxy.access.caller import TenantLimits
from proxy.access.key_file import KeyFile, KeyFileError

CHECK_S = 1.0
NO_LIMITS = TenantLimits()
logger = logging.getLogger(__name__)
Signature = tuple[int, int, int, int]


class KeyStore:
    """Maintains the keys by their public ids. `operator` is a key of no file."""

    def __init__(self, path: Path, operator: ApiKey | None = None, clock: Callable[[], float] = monotonic) -> None:
        """Raises KeyFileError."""
        self._path = path
        self._operator = operator
        self._clock = clock
        self._signature = _signature(path)
        self._next_check_at = clock() + CHECK_S
        self._take(KeyFile.read(path))

    @classmethod
    def open(cls, path: Path | None, operator_key_file: Path | None = None) -> KeyStore | None:
        """None without a file: then there are no keys. Raises KeyFileError."""
        if path is None:
            return None
        return cls(path, None if operator_key_file is None else _read_operator_key(operator_key_file))

    def find(self, text: str) -> ApiKey | None:
        """The key that this is, also when it holds no more; None: nobody's."""
        self._refresh()
        key = self._keys.get(id_of(text) or "")
        return key if is_key(text, key) else None

    def limits(self, tenant: str) -> TenantLimits:
        return self._limits.get(tenant, NO_LIMITS)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def _refresh(self) -> None:
        now = self._clock()
        if now < self._next_check_at:
            return
        self._next_check_at = now + CHECK_S
        signature = _signature(self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._take(KeyFile.read(self._path))
        except KeyFileError as error:
            logger.error("the API keys stay as they were: %s", error)
        else:
            logger.info("%s was read again: %d API keys", self._path, len(self._keys))

    def _take(self, file: KeyFile) -> None:
        keys = file.keys if self._operator is None else (*file.keys, self._operator)
        self._keys = {key.id: key for key in keys}
        self._limits = file.tenants


def _read_operator_key(file: Path) -> ApiKey:
    try:
        return operator_key(file.read_text().strip())
    except OSError as error:
        raise KeyFileError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise KeyFileError(f"{file}: {error}") from None


def _signature(path: Path) -> Signature | None:
    """Another one after each change; None while there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
